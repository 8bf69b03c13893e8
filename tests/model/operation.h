// One operation of the model test on files, drawn from a seed, and its outcome as text. The same operation
// applied to two directories must have the same outcome. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "tests/support/files.h"

namespace kvcachefs::test {

enum class Kind {
  kOpen,
  kClose,
  kRead,
  kWrite,
  kAppend,
  kTruncate,
  kTruncateOpen,
  kAllocate,
  kPunch,
  kZero,
  kMapWrite,
  kMapRead,
  kSync,
  kCopyRange,
  kRename,
  kLink,
  kUnlink,
  kSymlink,
  kMakeDirectory,
  kRemoveDirectory,
  kChangeMode,
  kSetTimes,
  kSetXattr,
  kGetXattr,
  kRemoveXattr,
  kList,
  kStatus,
  kContent,
  kStatusOpen,
  kCount,
};

inline constexpr int kSlots = 6;

struct Operation {
  Kind kind = Kind::kStatus;
  std::string name;
  std::string other;
  int slot = 0;
  int other_slot = 0;
  int flags = 0;
  off_t offset = 0;
  size_t bytes = 0;
  uint64_t seed = 0;

  std::string text() const;
};

Operation draw(Random& random);

// A directory and its open files.
class Side {
 public:
  explicit Side(std::string directory) : directory_(std::move(directory)) {}

  std::string apply(const Operation& operation);
  // All names with their status and content: the result of the operations so far.
  std::string tree() const;

 private:
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string on_open_file(const Operation& operation);
  std::string on_name(const Operation& operation);
  std::string on_attribute(const Operation& operation);
  std::string map(const Operation& operation, bool write);
  std::string copy_range(const Operation& operation);

  std::string directory_;
  std::array<std::optional<File>, kSlots> open_;
};

}  // namespace kvcachefs::test
