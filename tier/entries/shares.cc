#include "tier/entries/shares.h"

#include <algorithm>

#include "base/check.h"
#include "tier/blocks.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs {
namespace {

// A copy's mark is an xattr: with it an entry takes 1.22 inodes (alloc/memory_arena.h).
constexpr uint64_t kMarkSpace = 222;

uint64_t units_of(const CatalogContent& content) {
  uint64_t units = 0;
  for (const Extent& extent : content.extents)
    if (!is_hole(extent)) units += extent.count;
  return units;
}

uint64_t disk_units_of(const DiskFacts& disk) {
  if (!disk.copies) return 0;
  const CatalogContent *const latest = disk.copy(), *const held = disk.held();
  // What readers hold is most often the latest itself.
  const bool holds_more = held != nullptr && (latest == nullptr || latest->extents != held->extents);
  return (latest != nullptr ? units_of(*latest) : 0) + (holds_more ? units_of(*held) : 0);
}

}  // namespace

Taken taken_of(const Entry& entry) {
  if (!entry.is_file()) return {};
  const bool has_mark = entry.disk.copy() != nullptr;
  return {.data_bytes = entry.tier == Entry::Tier::kCold ? 0 : entry.memory.charged_bytes,
          .inode_space = kNameSpace + entry.kernel.more_inode_space + (has_mark ? kMarkSpace : 0),
          .disk_units = disk_units_of(entry.disk),
          .entries = 1};
}

Taken Shares::taken_of(const Other& other) {
  return {.data_bytes = other.pages * kBlockBytes, .inode_space = other.inode_space, .disk_units = 0};
}

void Shares::set_memory(const ArenaUsage& whole) {
  memory_bytes_ = whole.size_bytes;
  inodes_ = whole.inodes;
}

void Shares::set_disk(uint64_t units, uint64_t unit_bytes) {
  disk_units_ = units;
  unit_bytes_ = unit_bytes;
}

uint64_t Shares::share_of(uint64_t whole) const {
  const unsigned percent = percent_;
  return percent == 0 ? UINT64_MAX : percent_of(whole, percent);
}

// Half of a pool may be inodes, and they can be short where bytes are not, as can the places of entries: so
// each is shared by itself.
bool Shares::exceeds(const Taken& taken) const {
  if (const uint64_t most = most_entries_; most != 0 && taken.entries > share_of(most)) return true;
  return taken.memory_bytes() > share_of(memory_bytes_) ||
         taken.inode_space / kNameSpace > share_of(inodes_) || taken.disk_units > share_of(disk_units_);
}

bool Shares::is_over(uint8_t owner) const {
  if (!has_shares()) return false;
  MutexLock lock(mutex_);
  return owner < sums_.size() && exceeds(sums_[owner].taken);
}

bool Shares::is_user_over(uid_t uid) const {
  if (!has_shares()) return false;
  MutexLock lock(mutex_);
  const auto found = numbers_.find(uid);
  const size_t number = found == numbers_.end() ? kManyUsers : found->second;
  return number < sums_.size() && exceeds(sums_[number].taken);
}

Owners Shares::over() const {
  Owners result;
  if (!has_shares()) return result;
  MutexLock lock(mutex_);
  for (size_t owner = 0; owner < sums_.size(); ++owner) result[owner] = exceeds(sums_[owner].taken);
  return result;
}

Shares::Excess Shares::excess() const {
  Excess result;
  if (!has_shares()) return result;
  const uint64_t bytes = share_of(memory_bytes_), inodes = share_of(inodes_);
  MutexLock lock(mutex_);
  for (const Sum& sum : sums_) {
    const uint64_t its_bytes = sum.taken.memory_bytes(), its_inodes = sum.taken.inode_space / kNameSpace;
    result.data_bytes += std::min(its_bytes - std::min(its_bytes, bytes), sum.taken.data_bytes);
    result.inodes += its_inodes - std::min(its_inodes, inodes);
  }
  return result;
}

uint64_t Shares::within(const Promises& promised) const {
  const uint64_t bytes = share_of(memory_bytes_);
  MutexLock lock(mutex_);
  uint64_t result = 0;
  for (size_t owner = 0; owner < promised.size(); ++owner) {
    const uint64_t taken = owner < sums_.size() ? sums_[owner].taken.memory_bytes() : 0;
    result += std::min(promised[owner], bytes - std::min(bytes, taken));
  }
  return result;
}

std::vector<Shares::User> Shares::users() const {
  std::vector<User> result;
  const uint64_t unit_bytes = unit_bytes_;
  MutexLock lock(mutex_);
  for (size_t owner = 0; owner < sums_.size(); ++owner) {
    const Sum& sum = sums_[owner];
    if (sum.taken == Taken()) continue;
    result.push_back({.uid = owner == kManyUsers ? std::nullopt : std::optional(sum.uid),
                      .memory_bytes = sum.taken.memory_bytes(),
                      .disk_bytes = sum.taken.disk_units * unit_bytes,
                      .over = has_shares() && exceeds(sum.taken)});
  }
  return result;
}

void Shares::changed(uint64_t ino, uint8_t owner, const Taken& before, const Taken& after) {
  MutexLock lock(mutex_);
  check(ino, before, after);
  // What is added comes first: a user of whom nothing is left loses his number.
  add(owner, after);
  subtract(owner, before);
}

uint8_t Shares::given(const PolicyFacts& facts, uid_t uid, const Taken& before, const Taken& after) {
  MutexLock lock(mutex_);
  check(facts.ino, before, after);
  const uint8_t owner = number_of(uid);
  add(owner, after);
  subtract(facts.owner, before);
  return owner;
}

void Shares::erase(EntryTable::Shard& shard, uint64_t ino) {
  if (const Entry* const entry = shard.find(ino))
    if (const Taken taken = kvcachefs::taken_of(*entry); taken != Taken())
      changed(ino, entry->policy.owner, taken, {});
  shard.erase(ino);
}

void Shares::counted(uint64_t ino, uid_t uid, const Taken& taken) {
  MutexLock lock(mutex_);
  const auto [found, is_new] = others_.try_emplace(ino);
  Other& other = found->second;
  const Other before = other;
  const auto most = [](uint64_t number) {
    return static_cast<uint32_t>(std::min<uint64_t>(number, UINT32_MAX));
  };
  other = {.owner = number_of(uid),
           .pages = most(taken.data_bytes / kBlockBytes),
           .inode_space = most(taken.inode_space)};
  add(other.owner, taken_of(other));
  if (!is_new) subtract(before.owner, taken_of(before));
}

void Shares::gone(uint64_t ino) {
  MutexLock lock(mutex_);
  const auto found = others_.find(ino);
  if (found == others_.end()) return;
  subtract(found->second.owner, taken_of(found->second));
  others_.erase(found);
}

// The caller adds to the user's sum before it lets go of the lock.
uint8_t Shares::number_of(uid_t uid) {
  if (const auto found = numbers_.find(uid); found != numbers_.end()) return found->second;
  const auto unused = std::ranges::find(sums_, false, &Sum::used);
  const auto number = static_cast<size_t>(unused - sums_.begin());
  if (number >= kManyUsers) return kManyUsers;
  if (unused == sums_.end()) sums_.emplace_back();
  sums_[number] = {.uid = uid, .used = true, .taken = {}};
  numbers_[uid] = static_cast<uint8_t>(number);
  return static_cast<uint8_t>(number);
}

void Shares::add(uint8_t owner, const Taken& taken) {
  if (owner >= sums_.size()) sums_.resize(owner + size_t{1});
  Taken& sum = sums_[owner].taken;
  sum.data_bytes += taken.data_bytes;
  sum.inode_space += taken.inode_space;
  sum.disk_units += taken.disk_units;
  sum.entries += taken.entries;
}

void Shares::subtract(uint8_t owner, const Taken& taken) {
  Sum& its = sums_[owner];
  its.taken.data_bytes -= taken.data_bytes;
  its.taken.inode_space -= taken.inode_space;
  its.taken.disk_units -= taken.disk_units;
  its.taken.entries -= taken.entries;
  if (owner == 0 || owner == kManyUsers || its.taken != Taken()) return;
  numbers_.erase(its.uid);
  its.used = false;
}

#ifdef KVCACHEFS_CHECK_STATES
void Shares::check(uint64_t ino, const Taken& before, const Taken& after) {
  const auto found = checked_.find(ino);
  KVCACHEFS_CHECK((found == checked_.end() ? Taken() : found->second) == before);
  if (after == Taken())
    checked_.erase(ino);
  else
    checked_[ino] = after;
}
#else
void Shares::check(uint64_t, const Taken&, const Taken&) {}
#endif

}  // namespace kvcachefs
