// The disk tier of a pool that was taken over from a process that died. The tmpfs has what is true: the marks
// of its files say what the disk has of them (tier/catalog/copy_mark.h), and its tree has their names. The
// catalog is brought up to date here: with what it did not get, or lost in that process's memory alone.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/progress.h"
#include "tier/catalog/content_layout.h"
#include "tier/pool/recovery.h"
#include "tier/recovery/marked_tree.h"

namespace kvcachefs {
namespace {

CatalogNames::Place place_of(const CatalogName& name) {
  return {name.parent, std::string(name.name)};
}

bool is_same(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

// All but the ids, which are the same.
bool is_same(const CatalogNode& a, const CatalogNode& b) {
  return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.device == b.device &&
         a.pinned == b.pinned && is_same(a.accessed, b.accessed) && is_same(a.modified, b.modified) &&
         is_same(a.changed, b.changed) && a.link_target == b.link_target && a.xattrs == b.xattrs;
}

}  // namespace

class Recovery::Reconciler final : public CatalogVisitor, DiskPart {
 public:
  Reconciler(Recovery& its, DiskTier& tier, const std::optional<RestoringMark>& mark)
      : DiskPart(its),
        marks_(its.parts_.marks),
        pool_tree_(its.parts_.tree),
        tier_(tier),
        cold_pinned_(its.cold_pinned_) {
    if (!mark) return;
    up_to_ = mark->up_to;
    changed_ = {mark->changed.begin(), mark->changed.end()};
  }

  Result<KnownNodes> run() {
    // What could not be looked at would count as gone, and what the disk has of it would be dropped.
    if (auto whole = tree_.walk(surroundings_.on_several_threads); !whole) return pass(whole);
    claim();
    claim_kept();
    fault_point("claimed what the disk has");
    if (auto loaded = tier_.store->catalog().load(*this); !loaded) return pass(loaded);
    for (auto& [id, marked] : marked_) {
      if (!marked.seen && marked.is_clean()) doubt(marked);
      if (!marked.seen && !marked.is_dirty()) introduce(id, marked);
    }
    for (const Stray& stray : strays_) keep_shadowed(stray);
    for (const auto& place : lost_names_) keep_or_drop(place);
    // Drops come first, because a dropped name may be another file's now; nodes come before their names, and
    // directories before what is in them.
    std::ranges::move(tree_.new_directories(), std::back_inserter(dropped_));
    std::ranges::move(changes_, std::back_inserter(dropped_));
    if (!dropped_.empty()) {
      // Data is durable before the catalog names it.
      if (auto flushed = tier_.store->device().flush(); !flushed) return pass(flushed);
      // Extents that this commit gives back were never claimed here.
      if (auto committed = tier_.store->catalog().commit(dropped_); !committed) return pass(committed);
      fault_point("made up for the catalog");
    }
    KnownNodes known;
    for (auto& [id, marked] : marked_) {
      known.emplace(id, marked.handle);
      if (marked.doubted_version > 0) take_for_dirty(id, marked);
      if (marked.is_file && (marked.seen || !marked.is_dirty())) apply(id, marked);
    }
    hold_kept();
    discard_lost();
    if (lost_ > 0)
      log_warning("pool {}: {} cold entries are lost: the disk does not have them any more", name_, lost_);
    log_info("pool {}: its catalog has {} of its files and directories", name_, marked_.size());
    return known;
  }

  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    if (node.id == kCatalogRoot) return;
    const auto found = marked_.find(node.id);
    if (found == marked_.end() || found->second.is_file != (content != nullptr)) {
      if (is_to_come(node.id)) return;
      if (content == nullptr) return drop(names);
      Stray& stray = strays_.emplace_back(Stray{.id = node.id, .names = {}, .content = *content});
      std::ranges::transform(names, std::back_inserter(stray.names), place_of);
      return;
    }
    MarkedTree::Node& marked = found->second;
    if (marked.is_clean() && !(*content == marked.mark.content && tier_.store->claim(*content)))
      doubt(marked);
    // What the catalog has stays true until something newer is committed, or its name goes.
    if (marked.is_dirty() && !keep_older(marked, names, *content)) return drop(names);
    marked.seen = true;
    auto now = tree_.describe(node.id, marked);
    if (now) leave_its_times(*now, node);
    if (now && !is_same(*now, node)) changes_.push_back(PutNode{std::move(*now)});
    std::set<CatalogNames::Place> wanted = tree_.names_of(marked);
    for (const CatalogName& name : names) {
      CatalogNames::Place place = place_of(name);
      if (wanted.erase(place) > 0 || is_to_come(node.id)) continue;
      if (marked.is_file)
        lost_names_.push_back(std::move(place));
      else
        drop(place);
    }
    // A new name of an emptied file waits for its new content (tier/disk/catalog_names.h).
    if (marked.emptied) {
      if (marked.emptied_as && wanted.erase(*marked.emptied_as) > 0)
        changes_.push_back(PutName{marked.emptied_as->first, marked.emptied_as->second, node.id});
      return tier_.names.known_links(marked.handle.ino, std::move(wanted));
    }
    for (const auto& [parent, name] : wanted) changes_.push_back(PutName{parent, name, node.id});
    if (content != nullptr && *content != marked.mark.content)
      changes_.push_back(PutContent{node.id, marked.mark.content});
  }

  // What the catalog has lost is known from the files and their marks.
  void lost(CatalogLoss, uint64_t, std::string_view) override {}

 private:
  // A node that the catalog has and the tree does not have.
  struct Stray {
    uint64_t id = 0;
    std::vector<CatalogNames::Place> names;
    CatalogContent content;
  };

  bool is_to_come(uint64_t id) const { return up_to_ && id > *up_to_ && !changed_.contains(id); }

  // The time of a directory in which the restore still makes names is no client's.
  void leave_its_times(CatalogNode& now, const CatalogNode& node) const {
    if (!up_to_ || !S_ISDIR(node.mode)) return;
    now.accessed = node.accessed;
    now.modified = node.modified;
    now.changed = node.changed;
  }

  void claim() {
    for (auto at = marked_.begin(); at != marked_.end();) {
      count_step();
      const MarkedTree::Node& marked = at->second;
      const bool claimed = !marked.is_file || marked.is_dirty() || marked.is_clean() ||
                           tier_.store->claim(marked.mark.content);
      at = claimed ? std::next(at) : marked_.erase(at);  // discard_lost() discards a cold one
    }
  }

  // Claims what clients read of nameless files from the disk.
  void claim_kept() {
    for (const auto& [place, inode] : surroundings_.survivors->kept_inodes().list()) {
      if (inode.inode.pool != number_) continue;
      tier_.store->saw_id(promised_number(copy_mark_of(inode.fd)));
      const LockedEntry entry(entries_.shard(inode.inode.ino), inode.inode.ino);
      if (entry == nullptr || entry->direct_count == 0 || entry->tier != Entry::Tier::kCold) continue;
      auto mark = copy_mark_of(inode.fd);
      if (!mark || mark->state != CopyMark::State::kCold || !tier_.store->claim(mark->content)) continue;
      tier_.store->saw_id(mark->node_id);
      kept_.emplace(mark->node_id, Kept{.ino = inode.inode.ino, .content = std::move(mark->content)});
    }
  }

  void hold_kept() {
    for (auto& [id, kept] : kept_) {
      const LockedEntry entry(entries_.shard(kept.ino), kept.ino);
      if (entry == nullptr) continue;
      const CatalogContent& held = entries_.contents().held_on_disk(*entry, std::move(kept.content));
      kept.is_named ? tier_.store->hold(held) : tier_.store->hold_dropped(held);
    }
  }

  // A copy that the catalog does not name may have been lost by a flush that failed, and a later flush does
  // not tell of it again. The file has its bytes in memory, so it counts as dirty.
  static void doubt(MarkedTree::Node& marked) {
    marked.doubted_version = std::max(marked.mark.content.version, uint32_t{1});
    marked.mark.state = CopyMark::State::kNone;
  }

  void take_for_dirty(uint64_t id, const MarkedTree::Node& marked) {
    const LockedEntry entry(entries_.shard(marked.handle.ino), marked.handle.ino);
    if (entry == nullptr || entry->removed) return;
    const uint32_t version = std::max({entry->version, marked.doubted_version, marked.mark.first_version});
    entries_.contents().found_version(*entry, version, marked.mark.first_version);
    entry->disk.node_id = id;
    if (const auto file = arena_.open(marked.handle, O_RDONLY | O_NONBLOCK | O_NOATIME))
      (void)marks_.mark_copy(*entry, file->get(), CopyMark::State::kNone, nullptr);
    entry->disk.node_id = 0;  // apply() sets it if the catalog has the file
    entries_.contents().lost_copies(*entry);
    if (entry->tier == Entry::Tier::kClean) entries_.contents().dirtied(*entry);
  }

  // Keeps the names in the catalog that the dirty file still has, and claims its content. A file that was cut
  // to nothing gets no other name there but the one it was cut under. False: none stays.
  bool keep_older(MarkedTree::Node& marked, std::span<const CatalogName> names,
                  const CatalogContent& content) {
    const auto there = tree_.names_of(marked);
    marked.emptied = content.version < marked.mark.first_version;
    if (marked.emptied) marked.emptied_as = tree_.emptied_as(marked);
    const bool is_kept =
        !marked.emptied || marked.emptied_as ||
        std::ranges::any_of(names, [&](const CatalogName& name) { return there.contains(place_of(name)); });
    if (!is_kept || !tier_.store->claim(content)) return false;
    marked.mark.content = content;
    return true;
  }

  // A stray file keeps those names under which a file replaced it that the disk has not got yet.
  void keep_shadowed(const Stray& stray) {
    const auto kept = kept_.find(stray.id);
    const bool held = kept != kept_.end();
    bool claimed = held;
    for (const auto& place : stray.names) {
      if (tree_.is_replaced(place) && (claimed || (claimed = tier_.store->claim(stray.content)))) {
        tier_.names.known_shadowed(place);
        if (held) kept->second.is_named = true;
      } else {
        drop(place);
      }
    }
    if (claimed && (!held || kept->second.is_named)) tier_.store->expect_back(stray.content.extents);
  }

  // The same for a file that has other names in the tree: it stays with all of its content.
  void keep_or_drop(const CatalogNames::Place& place) {
    if (tree_.is_replaced(place))
      tier_.names.known_shadowed(place);
    else
      drop(place);
  }

  // Discards cold entries of which no copy was found.
  void discard_lost() {
    for (EntryTable::Shard& shard : entries_.shards()) {
      count_step();
      MutexLock lock(shard.mutex);
      std::vector<uint64_t> lost;
      for (const auto& [ino, entry] : shard.entries)
        if (entry.is_file() && entry.tier == Entry::Tier::kCold && !entry.removed &&
            entry.disk.copy() == nullptr)
          lost.push_back(ino);
      for (const uint64_t ino : lost) {
        count_step();
        Entry* const entry = shard.find(ino);
        auto fd = arena_.open(handle_of(*entry), O_PATH);
        if (!fd || pool_tree_.remove_names(*entry, fd->get()) != Tree::NamesLeft::kNone) continue;
        ++lost_;
        // What a client has opened of it meanwhile is not the pool's to keep from being overwritten.
        if (entry->disk.held() != nullptr) (void)entries_.contents().let_go(*entry);
        pool_tree_.gone(shard, *entry, RemovalReason::kDamaged);
      }
    }
  }

  // Tells the catalog of a node that it was about to hear of.
  void introduce(uint64_t id, const MarkedTree::Node& marked) {
    count_step();
    auto now = tree_.describe(id, marked);
    if (!now) return;
    changes_.push_back(PutNode{std::move(*now)});
    for (const auto& [parent, name] : tree_.names_of(marked)) changes_.push_back(PutName{parent, name, id});
    if (marked.is_file) changes_.push_back(PutContent{id, marked.mark.content});
  }

  void apply(uint64_t id, MarkedTree::Node& marked) {
    count_step();
    const LockedEntry entry(entries_.shard(marked.handle.ino), marked.handle.ino);
    if (entry == nullptr || entry->removed) return;
    // An entry that was opened after its promotion has all its pages (is_cold() in pool_adopt.cc).
    const bool cold = marked.mark.state == CopyMark::State::kCold && entry->tier == Entry::Tier::kCold;
    const bool is_half_promoted = cold && marked.attributes.st_blocks > 0;
    if (is_half_promoted)
      if (auto file = arena_.open(marked.handle, O_RDWR | O_NONBLOCK)) {
        const UnseenChange unseen(entry->kept, file->get(), true);
        (void)arena_.drop_pages(file->get());
      }
    entry->disk.node_id = id;
    const CopyMark& mark = marked.mark;
    entries_.contents().found_version(
        *entry, std::max({mark.content.version, marked.doubted_version, mark.first_version}),
        mark.first_version);
    entry->disk.emptied = marked.emptied;
    if (mark.emptied_as != 0) entry->disk.with_copies().emptied_as = mark.emptied_as;
    entry->disk.synced_nameless = false;  // the mark may be older than the copy
    entry->disk.name_hash = name_hash_of(marked.places.front().name);
    const CatalogContent& content = entries_.contents().copied(*entry, std::move(marked.mark.content));
    if (marked.is_dirty()) return;
    const uint64_t data_bytes = rounded_up(data_bytes_of(content, tier_.store->unit_bytes()));
    if (entry->direct_count > 0)
      tier_.store->hold(entries_.contents().held_on_disk(*entry, content));
    else if (entry->disk.held() != nullptr)
      (void)entries_.contents().let_go(*entry);  // verified for a client that has not opened it yet
    entries_.contents().found_copy(*entry, cold ? std::optional(data_bytes) : std::nullopt);
    if (cold && entry->pinned) cold_pinned_.push_back(marked.handle.ino);
  }

  void drop(std::span<const CatalogName> names) {
    for (const CatalogName& name : names) drop(place_of(name));
  }
  void drop(const CatalogNames::Place& place) { dropped_.push_back(DropName{place.first, place.second}); }

  struct Kept {
    uint64_t ino = 0;
    CatalogContent content;
    bool is_named = false;  // whether the catalog names it
  };

  CopyMarks& marks_;
  Tree& pool_tree_;
  DiskTier& tier_;
  std::vector<uint64_t>& cold_pinned_;
  std::optional<uint64_t> up_to_;         // of an unfinished restore
  std::unordered_set<uint64_t> changed_;  // by clients, beyond it
  std::vector<Stray> strays_;
  std::vector<CatalogNames::Place> lost_names_;  // the tree has their files by other names
  std::vector<CatalogChange> dropped_;
  MarkedTree tree_{arena_, entries_, tier_};
  MarkedTree::Nodes& marked_ = tree_.nodes();
  std::unordered_map<uint64_t, Kept> kept_;  // by the catalog's number
  std::vector<CatalogChange> changes_;
  uint64_t lost_ = 0;
};

Result<Recovery::KnownNodes> Recovery::reconcile(DiskTier& tier, const std::optional<RestoringMark>& mark) {
  return Reconciler(*this, tier, mark).run();
}

}  // namespace kvcachefs
