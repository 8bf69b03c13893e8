// The owners of claims (`user.kv.agent`) by numbers, which the claims of a SimilarIndex have in place of
// names. A name has a number while a reference to it is held. Not thread safe: its user holds a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

using OwnerNumber = uint16_t;
inline constexpr OwnerNumber kNoOwner = 0;  // entries without an owner; its name is empty
inline constexpr size_t kMostOwnerNames = UINT16_MAX;

// Whether excluding `owner` excludes `name`: the owner itself, and its roles, `owner:role`.
bool is_owner_or_role(std::string_view name, std::string_view owner);

class OwnerNames {
 public:
  // The number of the name, with a reference more. ENOSPC if all numbers are those of other names.
  Result<OwnerNumber> acquire(std::string_view name);
  // When the last reference goes, the number may come to be another name's: no claim may have it then.
  void release(OwnerNumber number);

  // kNoOwner if no reference to it is held.
  OwnerNumber find(std::string_view name) const;
  // Valid until the last reference is released.
  std::string_view name_of(OwnerNumber number) const;
  size_t size() const { return numbers_.size(); }

  // What SimilarIndex::find() takes to leave out an owner and its roles, as they are now; "" leaves out none.
  std::function<bool(OwnerNumber)> excluding(std::string_view owner) const;

 private:
  struct Name {
    const std::string* name = nullptr;  // the key in numbers_; null: the number is free
    uint64_t references = 0;
  };

  std::map<std::string, OwnerNumber, std::less<>> numbers_;
  std::vector<Name> names_{1};  // by number
  std::vector<OwnerNumber> free_;
};

}  // namespace kvcachefs
