// The names of a directory in the order in which listings give them: by place, a hash of the name. A name's
// place depends on the name alone. A listing that continues from a place therefore contains each name that
// stays exactly once, whatever was made, removed or replaced in between and whichever process answers. The
// order of a tmpfs does not promise that (docs/facts.md "Listing a directory"). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

// Places below this are those of "." and "..".
inline constexpr uint64_t kFirstPlace = 2;

struct PlacedName {
  uint64_t place = 0;
  uint64_t ino = 0;
  uint32_t text_at = 0;
  uint8_t type = 0;  // DT_REG and so on
};

// The names whose places are at least `from` and less than `to`, in order.
struct ListedNames {
  static constexpr uint64_t kNoEnd = UINT64_MAX;

  uint64_t from = 0;
  uint64_t to = kNoEnd;
  uint64_t parent_ino = 0;
  timespec changed{};  // when the directory was changed last before it was read
  std::vector<PlacedName> names;
  std::string text;  // the names themselves, each with a zero byte at its end

  bool covers(uint64_t place) const { return place >= from && place < to; }
  std::vector<PlacedName>::const_iterator first_at(uint64_t place) const;
  const char* text_of(const PlacedName& name) const { return text.data() + name.text_at; }
  size_t bytes() const { return names.size() * sizeof(PlacedName) + text.size(); }
};

// Collects the first names from a place on, as many as `limit_bytes` hold. A name may be added twice.
class NameCollector {
 public:
  NameCollector(uint64_t from, size_t limit_bytes) : limit_bytes_(limit_bytes) { listed_.from = from; }

  void add(std::string_view name, uint64_t ino = 0, uint8_t type = 0);
  ListedNames take();

 private:
  void sort();
  void shed();  // the last names, as far as the rest fits

  const size_t limit_bytes_;
  ListedNames listed_;
};

// Reads the names of an open directory from a place on. A directory of a hundred thousand names is read with
// one system call, which sees it at one moment. Failure: errno of fstat(2) or getdents64(2).
Result<ListedNames> read_names(int directory, uint64_t from);

}  // namespace kvcachefs
