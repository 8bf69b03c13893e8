#include "daemon/system_check/gather.h"

#include <linux/capability.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "alloc/numa_topology.h"
#include "base/host_memory.h"
#include "base/key_value.h"
#include "base/sys.h"
#include "daemon/config.h"
#include "fs/caller.h"
#include "tier/disk/uring_block_io.h"

namespace kvcachefs {
namespace {

// For mounts and passthrough; for inodes by their handles; for what users own; for leases on their files.
constexpr std::pair<int, const char*> kRights[] = {{CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
                                                   {CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"},
                                                   {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
                                                   {CAP_CHOWN, "CAP_CHOWN"},
                                                   {CAP_FOWNER, "CAP_FOWNER"},
                                                   {CAP_LEASE, "CAP_LEASE"}};

std::string first_word_of(const char* path) {
  const auto text = sys::read_text(path).value_or("");
  std::string_view line = text;
  return std::string(take_word(line));
}

// A list of words of which one is in brackets.
std::string chosen_word_of(const char* path) {
  const auto text = sys::read_text(path).value_or("");
  std::string_view rest = text;
  (void)take_part(rest, '[');
  return std::string(take_part(rest, ']'));
}

// The map of the host's own user namespace is one line: each user is itself (user_namespaces(7)).
bool maps_all_users(std::string_view map) {
  if (map.empty()) return true;  // not to be read: a kernel without user namespaces has no other
  const auto inside = take_word(map), outside = take_word(map), count = take_word(map);
  return inside == "0" && outside == "0" && count == "4294967295";
}

}  // namespace

SystemFacts gather_system_facts(const std::optional<std::string>& disk_path) {
  SystemFacts facts;
  utsname system{};
  if (uname(&system) == 0) facts.release = system.release;
  facts.is_root = geteuid() == 0;
  facts.has_hosts_users = maps_all_users(sys::read_text("/proc/self/uid_map").value_or(""));
  const auto self = Caller::of(gettid());
  for (const auto& [capability, name] : kRights)
    if (!self || !self->may(capability)) facts.missing_rights.emplace_back(name);
  facts.trials = try_mounts();
  facts.fuse_over_uring = fuse_over_uring_enabled();  // the trials may have loaded the module
  facts.disk_uring = try_uring();
  facts.uring_disabled = first_word_of("/proc/sys/kernel/io_uring_disabled");
  facts.shmem_enabled = chosen_word_of("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  facts.numa_nodes = NumaTopology::detect()->node_count();
  const HostMemory memory = HostMemoryReader().read();
  facts.machine_bytes = sys::memory_bytes();
  facts.usable_bytes = memory.total_bytes;
  facts.available_bytes = memory.available_bytes;
  facts.reserve_bytes = default_memory_reserve(memory.total_bytes);
  if (disk_path) facts.disk = look_at_disk(*disk_path);
  return facts;
}

}  // namespace kvcachefs
