#include "tier/entries/successors.h"

#include <algorithm>
#include <span>

#include "base/check.h"

namespace kvcachefs {
namespace {

// A key can be in this many slots, which lie next to each other.
constexpr size_t kWays = 4;
// This many opens of another follower in a row replace a link that is fully confirmed, so that one client
// with an order of its own does not.
constexpr uint8_t kConfidenceMaximum = 3;

template <class Slot>
std::span<Slot> slots_of(std::vector<Slot>& table, uint64_t key) {
  const uint64_t hash = key * 0x9e3779b97f4a7c15 >> 32;
  const uint64_t set = hash * (table.size() / kWays) >> 32;
  return std::span(table).subspan(set * kWays, kWays);
}

// An unused slot, else the one that was not used for longest.
template <class Slot>
Slot& oldest_of(std::span<Slot> slots) {
  return *std::ranges::min_element(slots, {}, [](const Slot& slot) { return slot.ino == 0 ? 0 : slot.used; });
}

}  // namespace

Successors::Successors(size_t links, size_t clients) : links_(links), clients_(clients) {
  KVCACHEFS_CHECK(links >= kWays && links % kWays == 0);
  KVCACHEFS_CHECK(clients >= kWays && clients % kWays == 0);
}

Successors::Link* Successors::find_link(uint64_t ino) {
  const std::span<Link> slots = slots_of(links_, ino);
  const auto found = std::ranges::find(slots, ino, &Link::ino);
  return found == slots.end() ? nullptr : &*found;
}

Successors::Link& Successors::link_of(uint64_t ino) {
  Link* found = find_link(ino);
  if (found == nullptr) {
    found = &oldest_of(slots_of(links_, ino));
    *found = {.ino = ino};
  }
  found->used = ++uses_;
  return *found;
}

Successors::Client& Successors::client_of(uint64_t client) {
  const std::span<Client> slots = slots_of(clients_, client);
  const auto found = std::ranges::find_if(
      slots, [client](const Client& slot) { return slot.client == client && slot.ino != 0; });
  Client& result = found == slots.end() ? oldest_of(slots) : *found;
  if (found == slots.end()) result = {.client = client};
  result.used = ++uses_;
  return result;
}

void Successors::learn(uint64_t before, uint64_t ino) {
  Link& link = link_of(before);
  if (link.follower == ino) {
    link.confidence = std::min<uint8_t>(kConfidenceMaximum, link.confidence + 1);
  } else if (link.confidence > 1) {
    --link.confidence;
    return;
  } else {
    link.follower = ino;
    link.confidence = 1;
  }
  link_of(ino).predecessor = before;
}

void Successors::opened(uint64_t client, uint64_t ino, uint64_t now_ms) {
  KVCACHEFS_CHECK(ino != 0);
  MutexLock lock(mutex_);
  Client& last = client_of(client);
  if (last.ino != 0 && last.ino != ino && now_ms <= last.opened_ms + kCloseMs) learn(last.ino, ino);
  last.ino = ino;
  last.opened_ms = now_ms;
}

std::vector<uint64_t> Successors::after(uint64_t ino) {
  std::vector<uint64_t> chain;
  MutexLock lock(mutex_);
  for (uint64_t at = ino; chain.size() < kDepth;) {
    Link* link = find_link(at);
    if (link == nullptr || link->follower == 0) break;
    link->used = ++uses_;
    at = link->follower;
    if (at == ino || std::ranges::find(chain, at) != chain.end()) break;
    chain.push_back(at);
  }
  return chain;
}

void Successors::removed(uint64_t ino) {
  MutexLock lock(mutex_);
  Link* link = find_link(ino);
  if (link == nullptr) return;
  Link* before = link->predecessor == 0 ? nullptr : find_link(link->predecessor);
  if (before != nullptr && before->follower == ino) {
    before->follower = 0;
    before->confidence = 0;
  }
  *link = {};
}

}  // namespace kvcachefs
