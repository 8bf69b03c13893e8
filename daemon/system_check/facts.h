// What `kvcachefsd --check-system` has found out, before anything is made of it. Any thread; plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/trial.h"
#include "fs/kernel_offer.h"

namespace kvcachefs {

// What was tried with mounts of its own. Of plain bytes: it comes from another process.
struct MountTrials {
  Trial own_mounts;  // without them nothing below is tried
  Trial tmpfs;       // as a pool's memory is mounted
  bool huge_option = false;
  bool noswap_option = false;
  Trial huge_page;        // a file got one, whose size was set
  Trial huge_page_ahead;  // the same of one that was allocated ahead of its size, as entries are
  Trial handles;
  Trial lease;
  Trial placing;  // on the machine's last node; tried on machines with several
  KernelOffer fuse;
};

// Of the place that is to hold a disk tier.
struct DiskPlace {
  std::string path;
  std::string looked_at;  // the path itself, or the directory in which it would be made
  Trial found;
  bool is_device = false;
  bool is_file = false;     // that there is
  std::string file_system;  // by name; empty: unknown, or a device
  bool is_memory = false;
  Trial direct;  // a block by O_DIRECT: of a device or file read, else written and read
  uint32_t block_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  std::string content;  // what a device or file carries that is not kvcachefs'; empty: nothing
};

struct SystemFacts {
  std::string release;  // as uname(2) has it
  bool is_root = false;
  bool has_hosts_users = true;  // false: the capabilities are those of a user namespace below the host's
  std::vector<std::string> missing_rights;  // names of capabilities
  MountTrials trials;
  std::optional<bool> fuse_over_uring;  // the kernel's switch
  Result<void> disk_uring;
  std::string uring_disabled;  // of the sysctl; empty: there is none
  std::string shmem_enabled;   // the word that is chosen; empty: the kernel has no huge pages
  size_t numa_nodes = 1;
  uint64_t machine_bytes = 0;
  uint64_t usable_bytes = 0;  // by this process: the machine's, or the least limit of its cgroups
  uint64_t available_bytes = 0;
  uint64_t reserve_bytes = 0;
  std::optional<DiskPlace> disk;
};

}  // namespace kvcachefs
