// The limits of how many entries and directories a pool may have (max_entries, max_directories) and how much
// each of them in xattrs (max_xattr_bytes, max_xattrs), how many there are, and the rooms where requests wait
// for the evictor to make a place. Who makes one claims its place first, so that threads that make some at
// once do not exceed the limit together; a hard link needs none. A limit that was lowered below what there is
// stays exceeded until the evictor has brought it down. Any thread; a leaf among the locks. Failure: no claim
// at the limit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tier/entries/entry_sums.h"
#include "tier/pool_options.h"
#include "tier/room.h"

namespace kvcachefs {

class NameLimit {
 public:
  // The place of what is being made, until it counts itself or has failed.
  class Claim {
   public:
    explicit Claim(std::atomic<uint64_t>& claims) : claims_(&claims) {}

   private:
    struct GiveBack {
      void operator()(std::atomic<uint64_t>* claims) const { --*claims; }
    };
    std::unique_ptr<std::atomic<uint64_t>, GiveBack> claims_;
  };

  NameLimit(uint64_t most, std::function<uint64_t()> count) : most_(most), count_(std::move(count)) {}

  void set(uint64_t most) { most_ = most; }  // 0: there is no limit
  uint64_t most() const { return most_; }
  uint64_t count() const { return count_(); }
  // `ahead`: so many requests that came before may want a place. None: the limit is reached.
  std::optional<Claim> claim(uint64_t ahead) {
    const uint64_t claims = ++claims_;
    Claim claim(claims_);
    // What has been made counts before its claim goes. So it is counted here, perhaps twice.
    const uint64_t most = most_;
    if (most == 0 || claims + count_() + ahead <= most) return claim;
    return std::nullopt;
  }
  // How many more there may be, and how many have to leave before there may be so many more.
  uint64_t free() const {
    const uint64_t most = most_;
    return most == 0 ? UINT64_MAX : most - std::min(most, taken());
  }
  uint64_t lack(uint64_t places) const {
    const uint64_t most = most_;
    const uint64_t wanted = taken() + std::min(places, most);
    return most == 0 ? 0 : wanted - std::min(wanted, most);
  }
  // How many must leave because there are more than the limit allows, whether or not a request waits for a
  // place.
  uint64_t excess() const {
    const uint64_t most = most_, count = count_();
    return most == 0 ? 0 : count - std::min(count, most);
  }
  Room& room() { return room_; }  // counts places, not bytes

 private:
  uint64_t taken() const {
    const uint64_t claims = claims_;
    return claims + count_();
  }

  std::atomic<uint64_t> most_;
  std::atomic<uint64_t> claims_{0};
  const std::function<uint64_t()> count_;
  Room room_;
};

class NameLimits {
 public:
  NameLimits(const PoolOptions& options, const EntrySums& sums)
      : entries(options.max_entries, [&sums] { return sums.files(); }),
        directories(options.max_directories, [this] { return directories_.load(); }),
        xattr_bytes(options.max_xattr_bytes),
        xattrs(options.max_xattrs) {}

  NameLimit entries;
  NameLimit directories;
  // Of one inode; what there is beyond a limit that was lowered stays.
  std::atomic<uint64_t> xattr_bytes;
  std::atomic<uint64_t> xattrs;

  // A directory got its name, or lost it. The pool's root is none.
  void made_directory() { ++directories_; }
  void lost_directory() { --directories_; }

 private:
  std::atomic<uint64_t> directories_{0};
};

}  // namespace kvcachefs
