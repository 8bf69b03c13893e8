#include "tier/index/entry_groups.h"

#include "base/clock.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kUseMs = 1000;

}  // namespace

struct EntryGroups::Group {
  std::pair<uid_t, std::string> key;
  std::unordered_set<uint64_t> members = {};
  uint64_t used_ms = 0;
};

uint64_t EntryGroups::join(uint64_t ino, uid_t user, std::string_view name) {
  MutexLock lock(mutex_);
  std::pair key(user, std::string(name));
  auto& group = groups_[key];
  const bool is_new = !group;
  if (is_new) group = std::make_shared<Group>(Group{.key = std::move(key)});
  if (group->members.size() == kMostMembers) return 0;
  group->members.insert(ino);
  by_member_[ino] = group;
  members_ = by_member_.size();
  return kMemberBytes + (is_new ? group_bytes(name) : 0);
}

uint64_t EntryGroups::leave(uint64_t ino) {
  MutexLock lock(mutex_);
  const auto member = by_member_.extract(ino);
  if (member.empty()) return 0;
  Group& group = *member.mapped();
  group.members.erase(ino);
  if (group.members.empty()) groups_.erase(group.key);
  members_ = by_member_.size();
  return kMemberBytes + (group.members.empty() ? group_bytes(group.key.second) : 0);
}

void EntryGroups::opened(uint64_t ino) {
  if (members_ == 0) return;
  MutexLock lock(mutex_);
  const auto member = by_member_.find(ino);
  if (member == by_member_.end()) return;
  Group& group = *member->second;
  const uint64_t now_ms = now_coarse_ms();
  if (group.members.size() < 2 || now_ms - group.used_ms < kUseMs) return;
  group.used_ms = now_ms;
  used_.push_back(member->second);
}

std::optional<std::vector<uint64_t>> EntryGroups::next_used() {
  MutexLock lock(mutex_);
  if (used_.empty()) return std::nullopt;
  const auto group = std::move(used_.front());
  used_.pop_front();
  return std::vector<uint64_t>(group->members.begin(), group->members.end());
}

std::shared_ptr<const EntryGroups::Group> EntryGroups::of(uint64_t ino) const {
  if (members_ == 0) return nullptr;
  MutexLock lock(mutex_);
  const auto member = by_member_.find(ino);
  return member == by_member_.end() ? nullptr : member->second;
}

std::vector<uint64_t> EntryGroups::members(const Group& group) const {
  MutexLock lock(mutex_);
  return {group.members.begin(), group.members.end()};
}

std::string_view EntryGroups::name_of(const Group& group) {
  return group.key.second;
}

}  // namespace kvcachefs
