// Helpers of the tests of eviction and capacity: they fill a pool and find out which entries are left. One
// thread; failures are recorded with GoogleTest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/mount.h"

namespace kvcachefs::test {

inline constexpr size_t kMiB = size_t{1} << 20;

// fill() stores NAME-0 … NAME-(count-1) as pattern(i, bytes) in `directory`; each store has to succeed.
// Returns their paths.
std::vector<std::string> fill(const std::string& directory, const std::string& name, int count,
                              size_t bytes = kMiB);
// The numbers of the names that still exist.
std::vector<int> survivors(const std::vector<std::string>& names);
// The numbers of the names that have their bytes in memory; without a disk tier the same as survivors().
std::vector<int> in_memory(const std::vector<std::string>& names);
// Each entry has to be readable and whole, or its open has to fail with ENOENT. Returns the number of whole
// ones.
int check_whole(const std::vector<std::string>& names);

// The memory of the pools as the kernel counts it, independent of the daemon: the used bytes of its tmpfs
// mounts.
uint64_t tmpfs_used_bytes(const Mount& mount);
// all_closed() waits until no entry is open: RELEASE arrives after close(2) has returned, and until then
// eviction skips the file.
bool all_closed(const Mount& mount, std::string_view pool = "p");
// The same, and waits until no entry is on its way to a disk: an order to evict then takes exactly what the
// policy says.
bool settled(const Mount& mount, std::string_view pool = "p");
// order() writes an order to evict, which has to succeed.
void order(const Mount& mount, std::string_view what);

}  // namespace kvcachefs::test
