// How this process becomes another program: which program that is, whether it could go on, and what is handed
// to it. Main thread. Failure: a sentence that names the program.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/service_manager.h"
#include "daemon/stand_in.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

// The descriptors that the program before this one has left to it.
struct Inheritance {
  UniqueFd memory;  // of Survivors
  UniqueFd lock;    // of RuntimeDir
  UniqueFd device;  // only of a supervisor that died; otherwise Survivors says where the device is
  StandIn stand_in{};
};
// The result comes from the program that this process was before, or from a daemon that died, if the service
// manager kept its descriptors.
std::optional<Inheritance> inheritance(ServiceManager& manager);
// The service manager keeps these descriptors while a mount is served, for the case that the daemon dies.
void keep_inheritance(ServiceManager& manager, const Survivors& survivors, int lock_fd);
void drop_inheritance(ServiceManager& manager);
// The connection that is kept is replaced by the present one.
void keep_other_connection(ServiceManager& manager, const Survivors& survivors);

// The versions of what a process leaves to the next: the format of Survivors, of a disk's superblock and of
// its catalog.
std::string own_formats();
// The reason why this program cannot go on with `formats`; empty if it can.
std::string objection_to(std::string_view formats);
// The answer of a program that is asked: it reads what survives as its own start would, and changes nothing.
// A program that asks without showing what survives gets an answer by the formats alone.
Result<void> could_adopt(std::string_view formats, uint64_t memory_bytes);

// True once the answer to a question is of no use any more; called all the time while one is asked. The
// question then ends with EINTR.
using Interrupted = std::function<bool()>;

// The check tells whether the next process could use the disks of these pools (daemon/pool_list.h), as far as
// that can be seen while another process has them. The disks of pools in `away` are not looked at. The check
// fails if it takes longer than 5 seconds for all disks together.
Result<void> check_disks(const std::string& pools, uint64_t memory_bytes,
                         const std::vector<std::string>& away, const Interrupted& interrupted);

class Succession {
 public:
  // The constructor must run before the working directory changes. The next program is the file that this one
  // was started from, with the content that it has when it is needed, and what relative paths among its
  // arguments start from is the directory of now, if that is still there.
  Succession(int argc, char** argv);

  // The check runs the next program with this program's own arguments, and with a view of what survives
  // (could_adopt). The program must understand the arguments, the formats and what it sees there. A program
  // that has not answered after 5 seconds cannot go on.
  Result<void> check(int memory_fd, const Interrupted& interrupted) const;
  Result<void> execute(int memory_fd, int lock_fd, int stand_in_fd,
                       const std::vector<int>& descriptors) const;

 private:
  Error become(std::vector<std::string> words) const;

  std::string program_, directory_;
  std::vector<std::string> arguments_;
};

}  // namespace kvcachefs
