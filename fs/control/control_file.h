// A virtual file: what is read of it and what writing to it does. Tables of these are fs/control/pool_files.h
// and fs/control/server_files.h.
// Thread safety: a ControlFile is constant, a ControlReader may be called by any thread. The target must
// outlive the reader that was opened on it.
// Failure: as the functions say; the message is a sentence for the log.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "tier/pool_options.h"

namespace kvcachefs {

// One open of a control file. Reading never fails: what it shows was gathered when it was opened.
class ControlReader {
 public:
  virtual ~ControlReader() = default;
  // Short only at the end.
  virtual std::string read(uint64_t offset, size_t size) = 0;
  virtual bool is_gathered() const { return false; }  // all of it, so that a read costs nothing
};

class TextReader final : public ControlReader {
 public:
  explicit TextReader(std::string text) : text_(std::move(text)) {}

  std::string read(uint64_t offset, size_t size) override {
    return offset < text_.size() ? text_.substr(offset, size) : std::string();
  }
  bool is_gathered() const override { return true; }

 private:
  const std::string text_;
};

// What it takes to show one: kGathers looks at many entries, kSurveys at the memory of all.
enum class ReadCost { kNone, kGathers, kSurveys };

template <class Target>
struct ControlFile {
  std::string_view name;
  // Exactly one of the two shows something.
  Result<std::string> (*text)(Target&) = nullptr;
  std::unique_ptr<ControlReader> (*stream)(Target&) = nullptr;
  // nullptr: read-only.
  Result<void> (*write)(Target&, std::string_view) = nullptr;
  // A write is one order; with this, each line is, and one that a write leaves unfinished goes on with the
  // next or ends with the close.
  bool takes_lines = false;
  // Of a pool: also in .kvcachefs/pools/NAME, where it is written on the administrator's behalf.
  bool of_administrator = false;
  bool owner_only_reads = false;  // writing it is the administrator's alone
  bool only_owner_reads = false;  // what it shows is not for everyone's eyes
  ReadCost cost = ReadCost::kNone;

  mode_t mode(Authority authority = Authority::kOwner) const {
    if (authority == Authority::kAdministrator) return write != nullptr ? 0600 : 0400;
    if (only_owner_reads) return 0400;
    return write != nullptr && !owner_only_reads ? 0644 : 0444;
  }

  Result<std::unique_ptr<ControlReader>> open(Target& target) const {
    if (stream != nullptr) return stream(target);
    Result<std::string> shown = text(target);
    if (!shown) return pass(shown);
    return std::make_unique<TextReader>(std::move(*shown));
  }
};

template <class Target>
const ControlFile<Target>* find_control_file(std::span<const ControlFile<Target>> files,
                                             std::string_view name) {
  for (const ControlFile<Target>& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

}  // namespace kvcachefs
