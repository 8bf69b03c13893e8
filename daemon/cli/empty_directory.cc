#include "daemon/cli/empty_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "base/sys.h"
#include "tier/children.h"

namespace kvcachefs {
namespace {

class Emptier {
 public:
  explicit Emptier(int top) : top_(top) {}

  Result<void> run() {
    // Because removing names while a directory is read can hide other names, the loop runs until a pass
    // removes nothing.
    do {
      removed_ = false;
      failed_ = {};
      auto names = sys::open_at(top_, ".", O_RDONLY | O_DIRECTORY);  // read from the beginning
      if (!names) return fail(names.error().code);
      auto read = for_each_child(std::move(*names), [this](const Child& child) { remove(child.name); });
      if (!read) return read;
    } while (removed_);
    return std::move(failed_);
  }

 private:
  void remove(const std::string& name) {
    auto removed = sys::unlink_at(top_, name.c_str(), 0);
    if (!removed && removed.error().code == EISDIR) removed = remove_directory(name);
    removed_ = removed_ || removed;
    if (!removed && removed.error().code != ENOENT) failed_ = std::move(removed);
  }

  Result<void> remove_directory(const std::string& name) {
    auto directory = sys::open_at(top_, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!directory) return fail(directory.error().code);
    const int number = directory->get();
    Result<void> failed;
    auto read = for_each_child(std::move(*directory), [&](const Child& child) {
      auto removed = sys::unlink_at(number, child.name.c_str(), 0);
      if (!removed && removed.error().code == EISDIR)
        removed = sys::unlink_at(number, child.name.c_str(), AT_REMOVEDIR);
      if (!removed && removed.error().code == ENOTEMPTY) removed = move_up(number, child.name);
      removed_ = removed_ || removed;
      if (!removed && removed.error().code != ENOENT) failed = std::move(removed);
    });
    if (!read) return read;
    auto removed = sys::unlink_at(top_, name.c_str(), AT_REMOVEDIR);
    return failed ? removed : failed;
  }

  Result<void> move_up(int directory, const std::string& name) {
    for (;;) {
      const std::string above = fmt::format("removed-{}", number_++);
      auto moved = sys::rename_at(directory, name.c_str(), top_, above.c_str(), RENAME_NOREPLACE);
      if (moved || moved.error().code != EEXIST) return moved;
    }
  }

  const int top_;
  uint64_t number_ = 0;
  bool removed_ = false;  // in this pass something was removed or moved up
  Result<void> failed_;
};

}  // namespace

Result<void> empty_directory(int directory) {
  return Emptier(directory).run();
}

}  // namespace kvcachefs
