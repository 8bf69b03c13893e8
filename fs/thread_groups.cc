#include "fs/thread_groups.h"

#include <string>

#include "base/key_value.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

pid_t group_of(pid_t thread) {
  const auto status = sys::read_text(("/proc/" + std::to_string(thread) + "/status").c_str()).value_or("");
  std::string_view group = line_value(status, "Tgid");
  return number_in<pid_t>(take_word(group)).value_or(thread);
}

}  // namespace

uint64_t ThreadGroups::of(pid_t thread) {
  {
    MutexLock lock(mutex_);
    if (auto found = groups_.find(thread); found != groups_.end())
      return static_cast<uint64_t>(found->second);
  }
  const pid_t group = group_of(thread);
  MutexLock lock(mutex_);
  if (groups_.size() >= kMost) groups_.clear();
  groups_[thread] = group;
  return static_cast<uint64_t>(group);
}

}  // namespace kvcachefs
