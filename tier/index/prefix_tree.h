// A PrefixTree answers which entries hold the longest prefix of a sequence of token ids. It is a radix tree
// over blocks of tokens: an edge is a run of whole blocks, kept exactly, so that no answer rests on a hash
// alone. An entry covers the blocks from its start (the root, or the end of the entry that holds the tokens
// before it) to its last whole block. Nodes are split where an entry starts or ends, so that an entry covers
// a node wholly or not at all. The caller removes the entries that start where no entry ends any more. So the
// tree has no more blocks than its entries.
//
// An insertion, a removal and a match take time in the number of blocks of their tokens, however many entries
// share them. Not thread safe: the index that has the tree has a lock (tier/index/entry_index.h). Failure:
// tokens whose hash equals that of other tokens under the same parent are not taken; a pair has the same hash
// with a probability of 2^-64.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvcachefs {

class PrefixTree {
 public:
  // A place between two blocks: where an entry ends, and others may start.
  using Place = uint32_t;
  static constexpr Place kStart = 0;
  // An entry's membership.
  using Member = uint32_t;

  explicit PrefixTree(size_t block_tokens) : block_tokens_(block_tokens), nodes_(1) {}

  // The owner of an entry, and its mode for reading (S_IRUSR | S_IRGRP | S_IROTH).
  struct Access {
    uid_t user = 0;
    gid_t group = 0;
    mode_t mode = 0;
    bool operator==(const Access&) const = default;
  };
  // The entry covers the whole blocks of these tokens from `start` on. An entry without a whole block is no
  // member.
  std::optional<Member> insert(uint64_t ino, Place start, std::span<const uint32_t> tokens,
                               const Access& access);
  void remove(Member member);
  Place start_of(Member member) const { return members_[member].start; }
  Place end_of(Member member) const { return members_[member].end; }
  size_t tokens_of_it_alone(Member member) const;  // that no other entry covers

  struct Piece {
    uint64_t ino;
    size_t first_token, end_token;  // of the query
  };
  enum class Use : uint8_t { kUse, kSkip, kStop };
  // The relation of an entry to the caller, as far as its access tells.
  enum class Whose : uint8_t { kUnreadable, kAnothers, kOwn };
  using WhoseIs = std::function<Whose(const Access&)>;
  // Returns the entries that hold the query's tokens from the first on, without a gap. Each entry reaches as
  // far as any entry at its place does. An entry counts if `whose_is` calls it readable and `use_of` allows
  // it. `use_of` is called at most once for an entry, and only if the entry matters: of entries that end at
  // one place, the caller's own come first, then the newest. At kStop the answer ends before that entry.
  // `left_out` becomes true if the search looked at as many runs and nodes as it may, and passed over others.
  std::vector<Piece> match(std::span<const uint32_t> query, const WhoseIs& whose_is,
                           const std::function<Use(uint64_t ino)>& use_of, bool& left_out) const;

  size_t block_tokens() const { return block_tokens_; }
  uint64_t blocks() const { return blocks_; }  // each counts once, however many entries cover it
  uint64_t memory_bytes() const;               // with what the allocator adds, to within a tenth

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    std::vector<uint32_t> tokens;  // of its edge; whole blocks
    size_t depth = 0;              // in tokens, where it ends
    Place parent = kStart;
    Place first_child = kNone, next_sibling = kNone, previous_sibling = kNone;
    Member first_run = kNone;  // of those that end here
    uint32_t covering = 0;     // entries that cover it
    uint32_t through = 0;      // those of them that cover its parent, too
    uint32_t starting = 0;     // entries that start where it ends
  };
  // Entries with the same start, end and access are a run, the newest first. A run is known by its first.
  struct Membership {
    uint64_t ino = 0;
    Place start = kStart, end = kStart;
    Member next = kNone, previous = kNone;  // of the run
    Access access = {};
    Member next_run = kNone, previous_run = kNone;  // with the same end; for the first of a run
  };
  struct Edge {
    Place parent;
    uint64_t first_block;  // its hash
    bool operator==(const Edge&) const = default;
  };
  struct EdgeHash {
    size_t operator()(const Edge& edge) const {
      return edge.first_block ^ (uint64_t{edge.parent} * 0x9e3779b97f4a7c15);
    }
  };
  struct Candidate {
    size_t start, end;  // in tokens of the query
    Whose whose;
    Member member;
  };

  Edge edge_from(Place parent, std::span<const uint32_t> tokens) const;
  size_t common_tokens(const Node& node, std::span<const uint32_t> tokens) const;
  Place make(Place parent, std::span<const uint32_t> tokens);
  void put_below(Place parent, Place place);
  void take_from_parent(Place place);
  // A new node gets the first `tokens` of the node's edge; the node keeps its number and the rest.
  Place split(Place place, size_t tokens);
  void prune(Place place);
  Member run_of(const Membership& its) const;  // kNone: there is none among the first kMostRuns
  // Makes `first` the first of the run, instead of `was`; kNone: the run has no member any more.
  void put_first(Member first, const Membership& was);
  void add_run(Member run, size_t end, const WhoseIs& whose_is, std::vector<Candidate>& to) const;
  struct Step {
    Place place;
    size_t end;  // in tokens of the query; the query may leave the last in its midst
  };
  std::vector<Step> walk(std::span<const uint32_t> query) const;
  void add_ends(const Step& step, const WhoseIs& whose_is, size_t& looks, std::vector<Candidate>& to) const;
  // The nodes below a step on which entries that cover the step go on elsewhere than the query.
  struct Leaving {
    size_t begin = 0, end = 0;  // of the step, in tokens of the query
    std::vector<Place> ahead;
    Member run = kNone;  // the next of the node that was taken last
    bool goes_on() const { return run != kNone || !ahead.empty(); }
  };
  Leaving leaving_from(const Step& step, Place next, size_t& looks) const;
  void go_below(const Node& node, Place next, size_t& looks, Leaving& leaving) const;
  // Adds some of the entries that go on there.
  void add_leaving(Leaving& leaving, const WhoseIs& whose_is, size_t& looks,
                   std::vector<Candidate>& to) const;

  const size_t block_tokens_;
  uint64_t blocks_ = 0;
  // A deque takes little more memory than its content, and never stops to move it all.
  std::deque<Node> nodes_;  // by Place; the first is the root
  std::vector<Place> free_nodes_;
  std::deque<Membership> members_;
  std::vector<Member> free_members_;
  std::unordered_map<Edge, Place, EdgeHash> edges_;
};

}  // namespace kvcachefs
