// Mounts as descriptors (open_tree(2), fsmount(2), move_mount(2), Linux 5.2), for a mount that takes
// another's place. Any thread. A call waits for no file system: only the last name of a path may lead into
// one. Failure: errno.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs::sys {

// A mount of the directory or file that the descriptor is of, which is not attached anywhere yet. It ends
// with its descriptor unless it is attached.
Result<UniqueFd> copy_of_mount(int fd);
// A mount of a new file system, which is not attached anywhere yet, with the options of mount(2) as pairs of
// key and value; an empty value makes a flag of its key. `nosuid` and `nodev` are set.
Result<UniqueFd> new_mount(const char* type,
                           std::initializer_list<std::pair<const char*, std::string>> options);
// Attaches a copy at the target, above what is mounted there.
Result<void> attach_mount(int copy, const std::string& target);
// The copy takes the place of the topmost mount at the target, which is detached. The directory below the
// mounts is never visible in between, except before Linux 6.5 and where mount propagation forbids the
// exchange.
Result<void> replace_mount(int copy, const std::string& target);
// Changes the flags of an attached copy (MS_RDONLY and others of mount(2)), all of them.
Result<void> set_mount_flags(int copy, unsigned long flags);
// Makes an attached mount shared or private (mount_namespaces(7)). A mount that becomes shared exchanges
// mounts and unmounts below it with copies that are made after the call.
Result<void> set_mount_shared(const std::string& mountpoint, bool shared);
Result<void> set_mount_shared(int copy, bool shared);

}  // namespace kvcachefs::sys
