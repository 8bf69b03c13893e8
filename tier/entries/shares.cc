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
bool Shares::exceeds(const Sum& sum) const {
  const Taken& taken = sum.taken;
  if (const uint64_t most = most_entries_; most != 0 && taken.entries > share_of(most)) return true;
  return taken.memory_bytes() + sum.asked_bytes > share_of(memory_bytes_) ||
         taken.inode_space / kNameSpace > share_of(inodes_) || taken.disk_units > share_of(disk_units_);
}

bool Shares::is_over(uint8_t owner) const {
  if (!has_shares()) return false;
  MutexLock lock(mutex_);
  return owner < sums_.size() && exceeds(sums_[owner]);
}

bool Shares::is_user_over(uid_t uid) const {
  if (!has_shares()) return false;
  MutexLock lock(mutex_);
  const auto found = numbers_.find(uid);
  const size_t number = found == numbers_.end() ? kManyUsers : found->second;
  return number < sums_.size() && exceeds(sums_[number]);
}

Owners Shares::over() const {
  Owners result;
  if (!has_shares()) return result;
  MutexLock lock(mutex_);
  for (size_t owner = 0; owner < sums_.size(); ++owner) result[owner] = exceeds(sums_[owner]);
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
                      .over = has_shares() && exceeds(sum)});
  }
  return result;
}

void Shares::changed(uint64_t ino, uint8_t owner, const Taken& before, const Taken& after) {
  MutexLock lock(mutex_);
  check(ino, before, after);
  // The addition comes first, because a user with nothing left loses the number.
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

uint8_t Shares::asks(uid_t uid, uint64_t bytes) {
  if (bytes == 0) return 0;
  MutexLock lock(mutex_);
  const uint8_t owner = number_of(uid);
  if (owner >= sums_.size()) sums_.resize(owner + size_t{1});
  sums_[owner].asked_bytes += bytes;
  return owner;
}

void Shares::asked(uint8_t owner, uint64_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(mutex_);
  sums_[owner].asked_bytes -= bytes;
  forget_if_unused(owner);
}

void Shares::opened(uint64_t ino, uint8_t owner, uid_t uid) {
  if (!has_shares() || uid == static_cast<uid_t>(-1)) return;
  MutexLock lock(mutex_);
  const auto number = numbers_.find(uid);
  if (owner == (number == numbers_.end() ? kManyUsers : number->second)) return;
  has_holders_ = true;
  auto& holders = holders_[ino];
  const auto found = std::ranges::find(holders, uid, &std::pair<uid_t, uint32_t>::first);
  if (found == holders.end())
    holders.emplace_back(uid, 1);
  else
    ++found->second;
}

void Shares::closed(uint64_t ino, uid_t uid) {
  if (!has_holders_) return;
  MutexLock lock(mutex_);
  const auto of_inode = holders_.find(ino);
  if (of_inode == holders_.end()) return;
  auto& holders = of_inode->second;
  const auto found = std::ranges::find(holders, uid, &std::pair<uid_t, uint32_t>::first);
  if (found != holders.end() && --found->second == 0) holders.erase(found);
  if (holders.empty()) holders_.erase(of_inode);
}

std::optional<uid_t> Shares::holder(uint64_t ino, uint32_t opens) const {
  MutexLock lock(mutex_);
  const auto of_inode = holders_.find(ino);
  if (of_inode == holders_.end()) return std::nullopt;
  uint32_t of_others = 0;
  for (const auto& [uid, its_opens] : of_inode->second) of_others += its_opens;
  return of_others == opens ? std::optional(of_inode->second.front().first) : std::nullopt;
}

// The caller adds to the user's sum before it lets go of the lock.
uint8_t Shares::number_of(uid_t uid) {
  if (const auto found = numbers_.find(uid); found != numbers_.end()) return found->second;
  const auto unused = std::ranges::find(sums_, false, &Sum::used);
  const auto number = static_cast<size_t>(unused - sums_.begin());
  if (number >= kManyUsers) return kManyUsers;
  if (unused == sums_.end()) sums_.emplace_back();
  sums_[number] = {.uid = uid, .used = true, .taken = {}, .asked_bytes = 0};
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
  forget_if_unused(owner);
}

void Shares::forget_if_unused(uint8_t owner) {
  Sum& its = sums_[owner];
  if (owner == 0 || owner == kManyUsers || its.taken != Taken() || its.asked_bytes > 0) return;
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
