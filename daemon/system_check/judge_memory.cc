// judge_memory(): the memory of the machine and of pools.
#include <fmt/format.h>

#include <cerrno>

#include "base/size.h"
#include "base/sys_disk.h"
#include "daemon/system_check/judge.h"

namespace kvcachefs {
namespace {

using State = SystemRow::State;

// A row of what was tried on a tmpfs.
SystemRow tmpfs_row(const SystemFacts& facts, std::string what, std::string_view since, const Trial& trial,
                    std::string_view present) {
  SystemRow row{.what = std::move(what)};
  if (!trial.tried()) {
    row.finding = not_tried(facts, since);
    row.remedy = "run this as root of the host";
    return row;
  }
  row.state = trial.worked() ? State::kPresent : State::kAbsent;
  row.finding = "tried: ";
  row.finding += trial.worked() ? present : sys::error_text(trial.code());
  return row;
}

// The option of a mount, as a trial.
Trial option(const SystemFacts& facts, bool taken) {
  if (!facts.trials.tmpfs.worked()) return {};
  return taken ? Trial::worked_well() : Trial::failed_with(EINVAL);
}

SystemRow judge_handles(const SystemFacts& facts) {
  SystemRow row =
      tmpfs_row(facts, "file handles on tmpfs", "", facts.trials.handles, "a file was opened by its handle");
  row.cost = "the daemon holds no descriptor per entry, and finds none without handles: it does not start";
  if (row.remedy.empty())
    row.remedy =
        "CAP_DAC_READ_SEARCH, and a kernel with CONFIG_FHANDLE; in a container a seccomp profile that allows "
        "open_by_handle_at(2)";
  row.needed = true;
  return row;
}

SystemRow judge_leases(const SystemFacts& facts) {
  SystemRow row = tmpfs_row(facts, "file leases on tmpfs", "", facts.trials.lease, "a lease was granted");
  row.cost = "a lease proves that an entry is not in use: nothing is evicted or spilled without";
  if (row.remedy.empty()) row.remedy = "sysctl fs.leases-enable=1 (CONFIG_FILE_LOCKING), and CAP_LEASE";
  row.needed = true;
  return row;
}

SystemRow judge_huge_pages(const SystemFacts& facts) {
  SystemRow row = tmpfs_row(facts, "huge pages on tmpfs", "", option(facts, facts.trials.huge_option),
                            "mounted with huge=within_size, and a file of 2 MiB got one");
  row.cost =
      "pages of 4 KiB: files of 32 MiB are written at 2 to 3 GB/s and not at 26, and mapping them costs a "
      "fault "
      "for each page";
  if (row.remedy.empty())
    row.remedy =
        "a kernel with CONFIG_TRANSPARENT_HUGEPAGE, which real-time (PREEMPT_RT) and some clouds' kernels "
        "lack";
  if (row.state == State::kAbsent) row.finding = "tried: the kernel refuses a tmpfs with huge=within_size";
  const bool ahead = facts.trials.huge_page_ahead.worked();
  if (row.state != State::kPresent || (facts.trials.huge_page.worked() && ahead)) return row;
  if (facts.trials.huge_page.worked()) {
    row.state = State::kAbsent;
    row.finding =
        "tried: files get them up to their size, but not for what is allocated ahead, as entries are";
    row.remedy = "a newer kernel: Linux 6.12 was seen to have it, 6.1 not";
    return row;
  }
  if (facts.shmem_enabled == "deny") {
    row.state = State::kAbsent;
    row.finding = "tried and read: a file of 2 MiB got none; shmem_enabled is deny";
    row.remedy = "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled: the mount decides then";
    return row;
  }
  row.state = State::kUnknown;
  row.finding = "tried: mounted with huge=within_size, but a file of 2 MiB got none: memory may be in pieces";
  row.remedy = "echo 1 > /proc/sys/vm/compact_memory, then look again";
  return row;
}

SystemRow judge_noswap(const SystemFacts& facts) {
  SystemRow row = tmpfs_row(facts, "tmpfs without swap", "6.4", option(facts, facts.trials.noswap_option),
                            "mounted with noswap");
  if (row.state == State::kAbsent) row.finding = "tried: the kernel refuses a tmpfs with noswap";
  row.cost =
      "none on a machine without swap; else the kernel may swap entries out, and reads wait for that disk";
  if (row.remedy.empty())
    row.remedy = facts.has_hosts_users ? "Linux 6.4 or later; or swapoff -a"
                                       : "the host's own user namespace, and Linux 6.4; or swapoff -a";
  return row;
}

SystemRow judge_numa(const SystemFacts& facts) {
  if (facts.numa_nodes <= 1)
    return {.what = "NUMA nodes", .state = State::kPresent, .finding = "read: one node, so nothing to place"};
  SystemRow row = tmpfs_row(facts, "NUMA nodes", "", facts.trials.placing,
                            fmt::format("{} nodes, and a file was placed on one", facts.numa_nodes));
  row.cost = "entries lie where the kernel puts them, which may be a node that is far from who reads them";
  if (row.remedy.empty())
    row.remedy = "in a container --cap-add SYS_NICE, or a seccomp profile that allows mbind(2)";
  return row;
}

SystemRow judge_amount(const SystemFacts& facts) {
  SystemRow row{.what = "memory"};
  if (facts.usable_bytes == 0) {
    row.finding = "read: neither /proc/meminfo nor a cgroup says how much there is";
    row.cost = "sizes in percent mean nothing, and no pool gives way when memory is short";
    row.remedy = "mount /proc";
    return row;
  }
  row.finding = fmt::format("read: {}", format_size(facts.machine_bytes));
  if (facts.usable_bytes < facts.machine_bytes)
    row.finding += fmt::format(", a cgroup's limit of {}", format_size(facts.usable_bytes));
  row.finding += fmt::format("; {} for all pools, and a reserve of {}; {} available now",
                             format_size(facts.usable_bytes - facts.reserve_bytes),
                             format_size(facts.reserve_bytes), format_size(facts.available_bytes));
  const bool enough = facts.available_bytes >= facts.reserve_bytes;
  row.state = enough ? State::kPresent : State::kAbsent;
  row.cost = "less than the reserve is available: pools shrink to a tenth of their sizes at once";
  row.remedy = "end what takes the memory, raise the cgroup's memory.max, or -o memory_reserve=SIZE";
  return row;
}

}  // namespace

std::vector<SystemRow> judge_memory(const SystemFacts& facts) {
  return {judge_handles(facts), judge_leases(facts), judge_huge_pages(facts),
          judge_noswap(facts),  judge_numa(facts),   judge_amount(facts)};
}

}  // namespace kvcachefs
