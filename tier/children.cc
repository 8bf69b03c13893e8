#include "tier/children.h"

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/fault_point.h"
#include "base/log_limit.h"
#include "base/progress.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// The fields of linux_dirent64 (getdents64(2)).
struct DirectoryRecord {
  uint64_t ino;
  int64_t offset;
  uint16_t length;
  uint8_t type;
};
constexpr size_t kTypeOffset = 18;
constexpr size_t kNameOffset = 19;
constexpr uint8_t kRegularType = 8;  // DT_REG
constexpr unsigned kMostNamed = 10;  // directories named in the log, a minute

}  // namespace

void for_each_child(int directory, const std::function<void(const Child& child)>& visit) {
  Child child;
  std::vector<char> buffer(64 << 10);
  for (;;) {
    auto size = sys::read_directory(directory, buffer);
    if (!size || *size == 0) return;
    for (size_t at = 0; at < *size;) {
      DirectoryRecord record{};
      std::memcpy(&record.ino, &buffer[at], sizeof record.ino);
      std::memcpy(&record.length, &buffer[at + 16], sizeof record.length);
      std::memcpy(&record.type, &buffer[at + kTypeOffset], sizeof record.type);
      const std::string_view name(&buffer[at + kNameOffset]);
      at += record.length;
      if (name == "." || name == "..") continue;
      count_step();
      fault_point("name read");
      child.ino = record.ino;
      child.is_regular = record.type == kRegularType;
      child.name = name;
      visit(child);
    }
  }
}

void walk_tree(const MemoryArena& arena,
               const std::function<void(int directory, uint64_t directory_ino, const Child& child)>& visit) {
  std::vector<sys::Handle> pending{arena.tree()};
  while (!pending.empty()) {
    const sys::Handle next = pending.back();
    pending.pop_back();
    const auto directory = arena.open(next, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!directory) {
      const int code = directory.error().code;  // a link or a pipe is no directory
      static LogLimit limit(kMostNamed);
      if (code != ENOTDIR && code != ELOOP)
        limit.error("directory {} cannot be looked through: {}", next.ino, std::strerror(code));
      continue;
    }
    for_each_child(directory->get(), [&](const Child& child) {
      visit(directory->get(), next.ino, child);
      if (child.is_regular) return;
      if (const auto handle = sys::handle_at(directory->get(), child.name.c_str()))
        pending.push_back(*handle);
    });
  }
}

}  // namespace kvcachefs
