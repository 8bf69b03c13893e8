#include "tier/index/owner_names.h"

#include <cerrno>
#include <utility>

#include "base/check.h"

namespace kvcachefs {

bool is_owner_or_role(std::string_view name, std::string_view owner) {
  return name.starts_with(owner) && (name.size() == owner.size() || name[owner.size()] == ':');
}

Result<OwnerNumber> OwnerNames::acquire(std::string_view name) {
  if (name.empty()) return kNoOwner;
  if (const OwnerNumber number = find(name)) {
    ++names_[number].references;
    return number;
  }
  if (numbers_.size() == kMostOwnerNames) {
    return fail(ENOSPC, "there are 65,535 agents already: user.kv.agent takes no other name");
  }
  if (free_.empty()) {
    free_.push_back(static_cast<OwnerNumber>(names_.size()));
    names_.emplace_back();
  }
  const OwnerNumber number = free_.back();
  free_.pop_back();
  const auto place = numbers_.emplace(name, number).first;
  names_[number] = {.name = &place->first, .references = 1};
  return number;
}

void OwnerNames::release(OwnerNumber number) {
  if (number == kNoOwner) return;
  KVCACHEFS_CHECK(number < names_.size() && names_[number].references > 0);
  if (--names_[number].references > 0) return;
  numbers_.erase(numbers_.find(*names_[number].name));
  names_[number] = {};
  free_.push_back(number);
}

OwnerNumber OwnerNames::find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? kNoOwner : found->second;
}

std::string_view OwnerNames::name_of(OwnerNumber number) const {
  if (number == kNoOwner) return {};
  KVCACHEFS_CHECK(number < names_.size() && names_[number].references > 0);
  return *names_[number].name;
}

std::function<bool(OwnerNumber)> OwnerNames::excluding(std::string_view owner) const {
  std::vector<bool> excluded(names_.size());
  if (!owner.empty()) {
    // In the map's order the owner and its roles lie between these two: ';' follows ':'.
    const auto end = numbers_.lower_bound(std::string(owner) + ';');
    for (auto its = numbers_.lower_bound(owner); its != end; ++its) {
      excluded[its->second] = is_owner_or_role(its->first, owner);
    }
  }
  return [excluded = std::move(excluded)](OwnerNumber number) {
    return number < excluded.size() && excluded[number];
  };
}

}  // namespace kvcachefs
