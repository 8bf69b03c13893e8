#include "tier/descriptor_budget.h"

#include <fmt/format.h>

#include <cerrno>

namespace kvcachefs {
namespace {

template <class Key>
uint64_t count_of(const std::unordered_map<Key, uint64_t>& counts, Key key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

template <class Key>
void count_down(std::unordered_map<Key, uint64_t>& counts, Key key) {
  const auto found = counts.find(key);
  if (--found->second == 0) counts.erase(found);
}

}  // namespace

Result<DescriptorBudget::Charge> DescriptorBudget::charge(uid_t owner, uint16_t pool) {
  MutexLock lock(mutex_);
  if (count_of(of_user_, owner) >= share_of_user())
    return fail(EDQUOT, fmt::format("user {}: {} open or nameless inodes are his already, and no more may be",
                                    owner, share_of_user()));
  if (count_of(of_pool_, pool) >= share_of_pool())
    return fail(
        EDQUOT,
        fmt::format("pool number {}: {} open or nameless inodes are there already, and no more may be", pool,
                    share_of_pool()));
  if (all_ >= share_of_all())
    return fail(EDQUOT, fmt::format("{} open or nameless inodes are there already, and no more may be",
                                    share_of_all()));
  count(owner, pool);
  return Charge(this, GiveBack{owner, pool});
}

DescriptorBudget::Charge DescriptorBudget::charge_held(uid_t owner, uint16_t pool) {
  MutexLock lock(mutex_);
  count(owner, pool);
  return Charge(this, GiveBack{owner, pool});
}

void DescriptorBudget::count(uid_t owner, uint16_t pool) {
  ++of_user_[owner];
  ++of_pool_[pool];
  ++all_;
}

void DescriptorBudget::give_back(uid_t owner, uint16_t pool) {
  MutexLock lock(mutex_);
  count_down(of_user_, owner);
  count_down(of_pool_, pool);
  --all_;
}

}  // namespace kvcachefs
