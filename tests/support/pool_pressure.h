// What the tests of eviction and capacity share: filling a pool, and asking what is left in it.
// One thread, except where a function says otherwise; failures are recorded with GoogleTest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/mount.h"

namespace kvcachefs::test {

inline constexpr size_t kMiB = size_t{1} << 20;

// Stores NAME-0 … NAME-(count-1) as pattern(i, bytes) in `directory`; each store has to succeed. Names are
// their paths.
std::vector<std::string> fill(const std::string& directory, const std::string& name, int count,
                              size_t bytes = kMiB);
// The numbers of the names that still exist.
std::vector<int> survivors(const std::vector<std::string>& names);
// The numbers of those whose bytes are in memory: without a disk tier the same.
std::vector<int> in_memory(const std::vector<std::string>& names);
// Each survivor has to be readable and whole, or be gone at its open; the number of whole ones.
int check_whole(const std::vector<std::string>& names);

// Memory the pool takes as the kernel counts it, whatever the daemon says: the used bytes of its tmpfs.
uint64_t tmpfs_used_bytes(const Mount& mount);
// Waits until nothing is open: RELEASE arrives after close(2) has returned, and until then a file is no
// victim.
bool all_closed(const Mount& mount, std::string_view pool = "p");
// The same, and nothing is on its way to a disk: an order to evict then takes exactly what the policy says.
bool settled(const Mount& mount, std::string_view pool = "p");
// Writes an eviction order and expects it to be taken.
void order(const Mount& mount, std::string_view what);

}  // namespace kvcachefs::test
