// Makes inodes anew from what the catalog has of them. Any thread. Failure: errno; a name that was made
// stays.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs {

// Gives the inode what the catalog has besides names and content.
Result<void> dress(const CatalogNode& node, int fd);
// A cold file without a name, in the file system of the directory. `marks`: a successor may come.
Result<UniqueFd> make_restored_file(const CatalogNode& node, int directory, const CatalogContent& content,
                                    bool marks);
// What is no regular file, not dressed yet. `may_be_there`: an inode of that kind is taken for it. `is_new`:
// the name is new, also if a later step fails.
Result<UniqueFd> make_restored_inode(const CatalogNode& node, int directory, const char* name,
                                     bool may_be_there, bool& is_new);

}  // namespace kvcachefs
