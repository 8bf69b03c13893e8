#include "tier/index/prefix_tree.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "base/checksum.h"
#include "tier/index/heap_bytes.h"

namespace kvcachefs {
namespace {

// Runs and nodes that a match looks at: 2 ms of the index's lock.
constexpr size_t kMostLooks = 65'536;
// Runs at the same end among which a new entry seeks its own; each user has a few at most.
constexpr size_t kMostRuns = 4096;

template <class Slot>
uint32_t take_slot(std::deque<Slot>& slots, std::vector<uint32_t>& free) {
  if (free.empty()) {
    slots.emplace_back();
    return static_cast<uint32_t>(slots.size() - 1);
  }
  const uint32_t slot = free.back();
  free.pop_back();
  return slot;
}

}  // namespace

PrefixTree::Edge PrefixTree::edge_from(Place parent, std::span<const uint32_t> tokens) const {
  return {parent, checksum_of(std::as_bytes(tokens.first(block_tokens_))).low};
}

// Returns the length of the common beginning, in whole blocks.
size_t PrefixTree::common_tokens(const Node& node, std::span<const uint32_t> tokens) const {
  const std::span<const uint32_t> its(node.tokens);
  const size_t most = std::min(its.size(), tokens.size());
  const auto differs = std::ranges::mismatch(tokens.first(most), its.first(most));
  const auto same = static_cast<size_t>(differs.in2 - its.begin());
  return same - same % block_tokens_;
}

void PrefixTree::put_below(Place parent, Place place) {
  const Place next = std::exchange(nodes_[parent].first_child, place);
  Node& node = nodes_[place];
  node.parent = parent;
  node.next_sibling = next;
  node.previous_sibling = kNone;
  if (next != kNone) nodes_[next].previous_sibling = place;
  edges_[edge_from(parent, node.tokens)] = place;
}

void PrefixTree::take_from_parent(Place place) {
  const Node& node = nodes_[place];
  edges_.erase(edge_from(node.parent, node.tokens));
  if (node.next_sibling != kNone) nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  (node.previous_sibling == kNone ? nodes_[node.parent].first_child
                                  : nodes_[node.previous_sibling].next_sibling) = node.next_sibling;
}

PrefixTree::Place PrefixTree::make(Place parent, std::span<const uint32_t> tokens) {
  const Place place = take_slot(nodes_, free_nodes_);
  nodes_[place].tokens.assign(tokens.begin(), tokens.end());
  nodes_[place].depth = nodes_[parent].depth + tokens.size();
  put_below(parent, place);
  return place;
}

PrefixTree::Place PrefixTree::split(Place place, size_t tokens) {
  take_from_parent(place);
  const std::vector<uint32_t> whole = std::move(nodes_[place].tokens);
  const std::span<const uint32_t> run(whole);
  const Place before = make(nodes_[place].parent, run.first(tokens));
  Node& node = nodes_[place];
  node.tokens.assign(run.begin() + static_cast<ptrdiff_t>(tokens), run.end());
  nodes_[before].covering = node.covering;
  nodes_[before].through = std::exchange(node.through, node.covering);
  put_below(before, place);
  return before;
}

PrefixTree::Member PrefixTree::run_of(const Membership& its) const {
  size_t looks = 0;
  for (Member run = nodes_[its.end].first_run; run != kNone && ++looks <= kMostRuns;
       run = members_[run].next_run)
    if (members_[run].start == its.start && members_[run].access == its.access) return run;
  return kNone;
}

void PrefixTree::put_first(Member first, const Membership& was) {
  const Member to_next = first == kNone ? was.previous_run : first;
  const Member to_previous = first == kNone ? was.next_run : first;
  if (was.next_run != kNone) members_[was.next_run].previous_run = to_next;
  (was.previous_run == kNone ? nodes_[was.end].first_run : members_[was.previous_run].next_run) = to_previous;
  if (first == kNone) return;
  members_[first].next_run = was.next_run;
  members_[first].previous_run = was.previous_run;
}

std::optional<PrefixTree::Member> PrefixTree::insert(uint64_t ino, Place start,
                                                     std::span<const uint32_t> tokens, const Access& access) {
  std::span<const uint32_t> left = tokens.first(tokens.size() - tokens.size() % block_tokens_);
  if (left.empty()) return std::nullopt;
  Place end = start;
  while (!left.empty()) {
    const auto edge = edges_.find(edge_from(end, left));
    if (edge == edges_.end()) {
      end = make(end, left);
      blocks_ += left.size() / block_tokens_;
      break;
    }
    Place next = edge->second;
    const size_t same = common_tokens(nodes_[next], left);
    if (same == 0) return std::nullopt;  // at most a node was split, which changes no answer
    if (same < nodes_[next].tokens.size()) next = split(next, same);
    end = next;
    left = left.subspan(same);
  }
  for (Place place = end; place != start; place = nodes_[place].parent) {
    ++nodes_[place].covering;
    if (nodes_[place].parent != start) ++nodes_[place].through;
  }
  ++nodes_[start].starting;
  const Member member = take_slot(members_, free_members_);
  Membership& its = members_[member];
  its = {.ino = ino, .start = start, .end = end, .access = access};
  its.next = run_of(its);
  if (its.next != kNone) {
    members_[its.next].previous = member;
    put_first(member, members_[its.next]);
  } else {
    its.next_run = std::exchange(nodes_[end].first_run, member);
    if (its.next_run != kNone) members_[its.next_run].previous_run = member;
  }
  return member;
}

void PrefixTree::remove(Member member) {
  const Membership was = std::exchange(members_[member], Membership{});
  free_members_.push_back(member);
  if (was.next != kNone) members_[was.next].previous = was.previous;
  if (was.previous != kNone)
    members_[was.previous].next = was.next;
  else
    put_first(was.next, was);
  for (Place place = was.end; place != was.start; place = nodes_[place].parent) {
    --nodes_[place].covering;
    if (nodes_[place].parent != was.start) --nodes_[place].through;
  }
  --nodes_[was.start].starting;
  prune(was.end);
}

size_t PrefixTree::tokens_of_it_alone(Member member) const {
  size_t tokens = 0;
  for (Place place = members_[member].end; place != members_[member].start; place = nodes_[place].parent)
    if (nodes_[place].covering == 1) tokens += nodes_[place].tokens.size();
  return tokens;
}

// Removes nodes that no entry covers and none starts at, from the leaf on.
void PrefixTree::prune(Place place) {
  while (place != kStart) {
    const Node& node = nodes_[place];
    if (node.covering > 0 || node.starting > 0 || node.first_child != kNone) return;
    take_from_parent(place);
    blocks_ -= node.tokens.size() / block_tokens_;
    const Place parent = node.parent;
    nodes_[place] = Node{};
    free_nodes_.push_back(place);
    place = parent;
  }
}

std::vector<PrefixTree::Step> PrefixTree::walk(std::span<const uint32_t> query) const {
  std::vector<Step> path;
  Place place = kStart;
  for (size_t at = 0; query.size() - at >= block_tokens_;) {
    const auto left = query.subspan(at);
    const auto edge = edges_.find(edge_from(place, left));
    if (edge == edges_.end()) break;
    place = edge->second;
    const size_t same = common_tokens(nodes_[place], left);
    if (same == 0) break;
    at += same;
    path.push_back({place, at});
    if (same < nodes_[place].tokens.size()) break;
  }
  return path;
}

void PrefixTree::add_run(Member run, size_t end, const WhoseIs& whose_is, std::vector<Candidate>& to) const {
  const Whose whose = whose_is(members_[run].access);
  if (whose != Whose::kUnreadable) to.push_back({nodes_[members_[run].start].depth, end, whose, run});
}

void PrefixTree::add_ends(const Step& step, const WhoseIs& whose_is, size_t& looks,
                          std::vector<Candidate>& to) const {
  for (Member run = nodes_[step.place].first_run; run != kNone && ++looks <= kMostLooks;
       run = members_[run].next_run)
    add_run(run, step.end, whose_is, to);
}

void PrefixTree::go_below(const Node& node, Place next, size_t& looks, Leaving& leaving) const {
  for (Place child = node.first_child; child != kNone && ++looks <= kMostLooks;
       child = nodes_[child].next_sibling)
    if (child != next && nodes_[child].through > 0) leaving.ahead.push_back(child);
}

PrefixTree::Leaving PrefixTree::leaving_from(const Step& step, Place next, size_t& looks) const {
  const Node& last = nodes_[step.place];
  Leaving leaving{.begin = last.depth - last.tokens.size(), .end = step.end, .ahead = {}};
  go_below(last, next, looks, leaving);
  return leaving;
}

void PrefixTree::add_leaving(Leaving& leaving, const WhoseIs& whose_is, size_t& looks,
                             std::vector<Candidate>& to) const {
  constexpr size_t kAtATime = 64;  // mostly one of the first can be used
  while (to.size() < kAtATime && ++looks <= kMostLooks) {
    if (leaving.run != kNone) {
      const Member run = std::exchange(leaving.run, members_[leaving.run].next_run);
      if (nodes_[members_[run].start].depth <= leaving.begin) add_run(run, leaving.end, whose_is, to);
    } else if (!leaving.ahead.empty()) {
      const Node& node = nodes_[leaving.ahead.back()];
      leaving.ahead.pop_back();
      leaving.run = node.first_run;
      go_below(node, kNone, looks, leaving);
    } else {
      return;
    }
  }
}

std::vector<PrefixTree::Piece> PrefixTree::match(std::span<const uint32_t> query, const WhoseIs& whose_is,
                                                 const std::function<Use(uint64_t ino)>& use_of,
                                                 bool& left_out) const {
  const std::vector<Step> path = walk(query);
  std::vector<Candidate> found;
  size_t looks = 0;
  for (const Step& step : path) add_ends(step, whose_is, looks, found);
  const auto starts_later = [](const Candidate& one, const Candidate& other) {
    return one.start > other.start;
  };
  const auto is_worse = [](const Candidate& one, const Candidate& other) {
    return std::tie(one.end, one.whose) < std::tie(other.end, other.whose);
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(starts_later)> ahead(starts_later);
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(is_worse)> reachable(is_worse);
  std::vector<Piece> pieces;
  size_t at = 0;
  // Entries that leave the path, and so end off it, are searched only where no other entry holds the tokens
  // that follow: first the entries that leave it last, and more of them as long as none can be used.
  size_t left_to_leave = path.size();
  Leaving leaving;
  for (;;) {
    for (const Candidate& each : std::exchange(found, {})) ahead.push(each);
    for (; !ahead.empty() && ahead.top().start <= at; ahead.pop()) reachable.push(ahead.top());
    if (!reachable.empty() && reachable.top().end > at) {
      Candidate candidate = reachable.top();
      reachable.pop();
      const uint64_t ino = members_[candidate.member].ino;
      const Use use = use_of(ino);
      if (use == Use::kStop) break;
      if (use == Use::kUse) {
        pieces.push_back({ino, at, candidate.end});
        at = candidate.end;
      } else if (candidate.member = members_[candidate.member].next; candidate.member != kNone) {
        reachable.push(candidate);  // the next of the run
      }
    } else if (looks <= kMostLooks && leaving.end > at && leaving.goes_on()) {
      add_leaving(leaving, whose_is, looks, found);
    } else if (looks <= kMostLooks && left_to_leave > 0 && path[left_to_leave - 1].end > at) {
      const Place next = left_to_leave < path.size() ? path[left_to_leave].place : kNone;
      leaving = leaving_from(path[--left_to_leave], next, looks);
    } else {
      break;
    }
  }
  left_out = looks > kMostLooks;
  return pieces;
}

uint64_t PrefixTree::memory_bytes() const {
  constexpr uint64_t kEdgeBytes = 56;   // a node of the map, its bucket, and what malloc adds
  constexpr uint64_t kMallocBytes = 8;  // for the tokens of a node
  const uint64_t nodes = nodes_.size() - free_nodes_.size();
  return deque_bytes(nodes_) + deque_bytes(members_) + vector_bytes(free_nodes_) +
         vector_bytes(free_members_) + nodes * (kEdgeBytes + kMallocBytes) +
         blocks_ * block_tokens_ * sizeof(uint32_t);
}

}  // namespace kvcachefs
