// count_inode() counts what an inode takes for the user who owns it (tier/entries/shares.h), as the tmpfs
// says it: an inode's names and xattrs take inodes, and the target of a symbolic link takes memory. Any
// thread, with the inode's shard held. Failure: what cannot be read stays counted as before.
#pragma once

#include <sys/stat.h>

#include "tier/entries/entries.h"

namespace kvcachefs {

// `entry`: the inode's, if it has one; that of a regular file.
void count_inode(Entries& entries, Entry* entry, int fd, const struct stat& attributes);
void count_inode(Entries& entries, Entry* entry, int fd);

// An entry without a name that its owner does not have open counts for a user who does.
void count_for_holder(Entries& entries, Entry& entry);

}  // namespace kvcachefs
