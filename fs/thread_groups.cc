#include "fs/thread_groups.h"

#include <cstdlib>
#include <string>

#include "base/sys.h"

namespace kvcachefs {
namespace {

// The process is the number after "Tgid:\t" in proc(5)'s status.
pid_t group_of(pid_t thread) {
  constexpr std::string_view kKey = "\nTgid:";
  auto status = sys::read_text(("/proc/" + std::to_string(thread) + "/status").c_str());
  const size_t at = status ? status->find(kKey) : std::string::npos;
  return at == std::string::npos ? thread : std::atoi(status->c_str() + at + kKey.size());
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
