// How one program becomes another under the same process: which the other is, whether it could go on, and
// what it is told. Main thread. Failure: a sentence that names the program.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/service_manager.h"
#include "tier/survivors.h"

namespace kvcachefs {

// What the program before this one has left it: descriptors.
struct Inheritance {
  UniqueFd memory;  // Survivors
  UniqueFd lock;    // RuntimeDir
  UniqueFd device;  // of a supervisor that died; else where Survivors says
};
// Of the program that this process was before, or of a daemon that died, if the service manager kept it.
std::optional<Inheritance> inheritance(ServiceManager& manager);
// For that: what the service manager is to keep while a mount is served.
void keep_inheritance(ServiceManager& manager, const Survivors& survivors, int lock_fd);
void drop_inheritance(ServiceManager& manager);

// The formats of what a process leaves to the next: of Survivors, of a disk's superblock and of its catalog.
std::string own_formats();
// Why this program cannot go on with those; empty if it can.
std::string objection_to(std::string_view formats);

// Whether the disks of these pools (daemon/pool_list.h) could be had, as far as that can be seen while
// another process has them; those that are away already need not. A disk that does not answer within seconds
// could not.
Result<void> check_disks(const std::string& pools, uint64_t memory_bytes,
                         const std::vector<std::string>& away);

class Succession {
 public:
  // Before the working directory changes. The program is the file that this one was started from, as it is
  // when it is needed.
  Succession(int argc, char** argv);

  // Asks it, with this program's own arguments: they and what survives have to be what it understands.
  // A program that has not answered after some seconds cannot go on.
  Result<void> check() const;
  Result<void> execute(int memory_fd, int lock_fd, const std::vector<int>& descriptors) const;

 private:
  std::string program_;
  std::vector<std::string> arguments_;
};

}  // namespace kvcachefs
