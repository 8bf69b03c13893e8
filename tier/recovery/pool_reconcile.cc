// The disk tier of a pool that was taken over from a process that died. The tmpfs has what is true: the marks
// of its files say what the disk has of them (tier/catalog/copy_mark.h), and its tree has their names. The
// catalog is brought up to date here: with what it did not get, or lost in that process's memory alone.
#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/progress.h"
#include "tier/catalog/catalog_compare.h"
#include "tier/catalog/content_layout.h"
#include "tier/children.h"
#include "tier/entries/name_hash.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

struct Place {
  uint64_t parent_ino = 0;
  std::string name;
};

struct Marked {
  sys::Handle handle;
  CopyMark mark;  // for a dirty file with the content that the catalog has
  bool is_file = false;
  bool seen = false;          // the catalog has it
  bool emptied = false;       // dirty, and truncated to 0 bytes after the catalog got its content
  bool plain = false;         // a file that has no other xattr than the mark
  struct stat attributes {};  // as its users see it
  std::vector<Place> places;

  bool is_dirty() const { return is_file && mark.state == CopyMark::State::kNone; }
};

// A node that the catalog has and the tree does not have.
struct Stray {
  uint64_t id = 0;
  std::vector<CatalogNames::Place> names;
  CatalogContent content;
};

CatalogNames::Place place_of(const CatalogName& name) {
  return {name.parent, std::string(name.name)};
}

}  // namespace

class Recovery::Reconciler final : public CatalogVisitor {
 public:
  Reconciler(Pool& pool, DiskTier& tier, bool unfinished)
      : pool_(pool), tier_(tier), unfinished_(unfinished), ids_{{pool.root_ino(), kCatalogRoot}} {}

  Result<KnownNodes> run() {
    // What could not be looked at would count as gone, and what the disk has of it would be dropped.
    if (auto whole = walk(); !whole) return pass(whole);
    claim();
    claim_kept();
    fault_point("claimed what the disk has");
    if (auto loaded = tier_.store->catalog().load(*this); !loaded) return pass(loaded);
    for (auto& [id, marked] : marked_)
      if (!marked.seen && !marked.is_dirty()) introduce(id, marked);
    for (const Stray& stray : strays_) keep_shadowed(stray);
    for (const auto& place : lost_names_) keep_or_drop(place);
    // Drops come first, because a dropped name may be another file's now; nodes come before their names.
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
      if (marked.is_file && (marked.seen || !marked.is_dirty())) apply(id, marked);
    }
    hold_kept();
    discard_lost();
    if (lost_ > 0)
      log_warning("pool {}: {} entries were on the disk alone, and it has them no more", pool_.name_, lost_);
    log_info("pool {}: {} of what is there is on its disk too", pool_.name_, marked_.size());
    return known;
  }

  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    if (node.id == kCatalogRoot) return;
    const auto found = marked_.find(node.id);
    if (found == marked_.end() || found->second.is_file != (content != nullptr)) {
      if (unfinished_) return;
      if (content == nullptr) return drop(names);
      Stray& stray = strays_.emplace_back(Stray{.id = node.id, .names = {}, .content = *content});
      std::ranges::transform(names, std::back_inserter(stray.names), place_of);
      return;
    }
    Marked& marked = found->second;
    // What the catalog has stays true until something newer is committed, or its name goes.
    if (marked.is_dirty() && !keep_older(marked, names, *content)) return drop(names);
    marked.seen = true;
    if (auto now = described(node.id, marked); now && !same_node(*now, node))
      changes_.push_back(PutNode{std::move(*now)});
    std::set<CatalogNames::Place> wanted = names_of(marked);
    for (const CatalogName& name : names) {
      CatalogNames::Place place = place_of(name);
      if (wanted.erase(place) > 0 || unfinished_) continue;
      if (marked.is_file)
        lost_names_.push_back(std::move(place));
      else
        drop(place);
    }
    // A new name of an emptied file waits for its new content (tier/disk/catalog_names.h).
    if (marked.emptied) return tier_.names.known_links(marked.handle.ino, std::move(wanted));
    for (const auto& [parent, name] : wanted) changes_.push_back(PutName{parent, name, node.id});
    if (content != nullptr && !same_content(*content, marked.mark.content))
      changes_.push_back(PutContent{node.id, marked.mark.content});
  }

  // What the catalog has lost is known from the files and their marks.
  void lost(CatalogLoss, uint64_t, std::string_view) override {}

 private:
  Result<void> walk() {
    Result<void> noted;
    auto whole = walk_tree(pool_.arena_, [&](int directory, uint64_t directory_ino, const Child& child) {
      const int flags = child.is_regular ? kReadForFacts : O_PATH | O_NOFOLLOW;
      const int refused = injected_error("look at what is there");
      auto fd = refused != 0 ? fail(refused) : sys::open_at(directory, child.name.c_str(), flags);
      auto done = fd ? note(fd->get(), child.is_regular, {.parent_ino = directory_ino, .name = child.name})
                     : pass(fd);
      if (!done) noted = std::move(done);
    });
    return noted ? std::move(whole) : std::move(noted);
  }

  Result<void> note(int fd, bool is_file, Place place) {
    auto mark = copy_mark_of(fd);
    if (mark && mark->error != 0) return fail(mark->error);
    if (is_file && (!mark || mark->node_id == 0)) return {};
    auto handle = sys::handle_of(fd);
    auto attributes = sys::stat_of(fd);
    if (!handle) return pass(handle);
    if (!attributes) return pass(attributes);
    if (!mark || mark->node_id == 0) {
      if (S_ISDIR(attributes->st_mode)) unnumbered_[handle->ino] = {*handle, std::move(place)};
      return {};
    }
    if (mark->state == CopyMark::State::kUnreadable) return {};
    const uint64_t id = mark->node_id;
    tier_.store->saw_id(id);
    const KeptCtime kept = is_file ? adopted_ctime(handle->ino) : adopt_ctime(fd, *attributes, true);
    show_ctime(kept, *attributes);
    Marked& marked = marked_[id];
    if (marked.places.empty()) {
      marked.handle = *handle;
      marked.mark = std::move(*mark);
      marked.is_file = is_file;
      marked.attributes = *attributes;
      marked.plain = is_file && !has_other_xattrs(fd);
    }
    marked.places.push_back(std::move(place));
    if (is_file) return {};
    ids_[handle->ino] = id;
    tier_.names.known(handle->ino, id, -1, kept);
    return {};
  }

  void claim() {
    for (auto at = marked_.begin(); at != marked_.end();) {
      count_step();
      const Marked& marked = at->second;
      const bool claimed = !marked.is_file || marked.is_dirty() || tier_.store->claim(marked.mark.content);
      at = claimed ? std::next(at) : marked_.erase(at);  // discard_lost() discards a cold one
    }
  }

  // Claims what clients read of nameless files from the disk.
  void claim_kept() {
    for (const auto& [place, inode] : pool_.surroundings_.survivors->kept_inodes().list()) {
      if (inode.inode.pool != pool_.number_) continue;
      tier_.store->saw_id(promised_number(copy_mark_of(inode.fd)));
      EntryTable::Shard& shard = pool_.entries_.shard(inode.inode.ino);
      MutexLock lock(shard.mutex);
      const Entry* const entry = shard.find(inode.inode.ino);
      if (entry == nullptr || entry->direct_count == 0 || entry->tier != Entry::Tier::kCold) continue;
      auto mark = copy_mark_of(inode.fd);
      if (!mark || mark->state != CopyMark::State::kCold || !tier_.store->claim(mark->content)) continue;
      tier_.store->saw_id(mark->node_id);
      kept_.emplace(mark->node_id, Kept{.ino = inode.inode.ino, .content = std::move(mark->content)});
    }
  }

  void hold_kept() {
    for (auto& [id, kept] : kept_) {
      EntryTable::Shard& shard = pool_.entries_.shard(kept.ino);
      MutexLock lock(shard.mutex);
      const CatalogContent& held = shard.held.emplace(kept.ino, std::move(kept.content)).first->second;
      kept.is_named ? tier_.store->hold(held) : tier_.store->hold_dropped(held);
    }
  }

  // Keeps the names in the catalog that the dirty file still has, and claims its content. False: none stays.
  bool keep_older(Marked& marked, std::span<const CatalogName> names, const CatalogContent& content) {
    const auto there = names_of(marked);
    marked.emptied = content.version < marked.mark.first_version;
    const bool is_kept = !marked.emptied || std::ranges::any_of(names, [&](const CatalogName& name) {
      return there.contains(place_of(name));
    });
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
      if (is_replaced(place) && (claimed || (claimed = tier_.store->claim(stray.content)))) {
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
    if (is_replaced(place))
      tier_.names.known_shadowed(place);
    else
      drop(place);
  }

  // True if a regular file has the name in the tree that the catalog does not have, or not by this name.
  bool is_replaced(const CatalogNames::Place& place) {
    count_step();
    const auto directory = marked_.find(place.first);
    UniqueFd parent;
    if (place.first != kCatalogRoot) {
      if (directory == marked_.end() || directory->second.is_file) return false;
      auto opened = pool_.arena_.open(directory->second.handle, O_RDONLY | O_DIRECTORY);
      if (!opened) return false;
      parent = std::move(*opened);
    }
    const int parent_fd = parent ? parent.get() : pool_.arena_.tree_fd();
    const auto file = sys::open_at(parent_fd, place.second.c_str(), kReadForFacts);
    if (!file) return false;
    const auto attributes = sys::stat_of(file->get());
    if (!attributes || !S_ISREG(attributes->st_mode)) return false;
    const auto mark = copy_mark_of(file->get());
    const auto its = mark ? marked_.find(mark->node_id) : marked_.end();
    if (its == marked_.end() || !its->second.is_file) return true;
    return its->second.is_dirty() && (!its->second.seen || its->second.emptied);
  }

  // Discards cold entries of which no copy was found.
  void discard_lost() {
    for (size_t index = 0; index < EntryTable::kShards; ++index) {
      count_step();
      EntryTable::Shard& shard = pool_.entries_.shard_at(index);
      MutexLock lock(shard.mutex);
      std::vector<uint64_t> lost;
      for (const auto& [ino, entry] : shard.entries)
        if (entry.is_file() && entry.tier == Entry::Tier::kCold && !entry.removed &&
            !shard.copies.contains(ino))
          lost.push_back(ino);
      for (const uint64_t ino : lost) {
        count_step();
        Entry* const entry = shard.find(ino);
        auto fd = pool_.arena_.open(handle_of(*entry), O_PATH);
        if (!fd || pool_.tree_.remove_names(*entry, fd->get()) != Tree::NamesLeft::kNone) continue;
        ++lost_;
        pool_.tree_.gone(shard, *entry, RemovalReason::kDamaged);
      }
    }
  }

  std::set<CatalogNames::Place> names_of(const Marked& marked) {
    std::set<CatalogNames::Place> result;
    for (const Place& place : marked.places)
      if (const uint64_t parent = id_of_directory(place.parent_ino); parent != 0)
        result.emplace(parent, place.name);
    return result;
  }

  // The catalog's number of a directory; 0: the directory cannot be looked at. A directory that was made
  // while the disk was away (tier/disk/away_disk.h), and that has something of the catalog in it, gets a
  // number now, as do all above it.
  uint64_t id_of_directory(uint64_t ino) {
    std::vector<uint64_t> way;  // those without a number, from the directory upwards
    for (; !ids_.contains(ino) && unnumbered_.contains(ino); ino = unnumbered_.at(ino).place.parent_ino)
      way.push_back(ino);
    const auto known = ids_.find(ino);
    uint64_t id = known == ids_.end() ? 0 : known->second;
    for (; !way.empty() && id != 0; way.pop_back()) id = number(way.back(), id);
    return id;
  }

  uint64_t number(uint64_t ino, uint64_t parent_id) {
    const Unnumbered& directory = unnumbered_.at(ino);
    auto fd = pool_.arena_.open(directory.handle, O_RDONLY | O_DIRECTORY);
    if (!fd) return 0;
    const uint64_t id = tier_.store->new_id();
    const auto attributes = sys::stat_of(fd->get());
    if (!attributes) return 0;
    KeptCtime kept;
    keep_ctime(kept, fd->get(), true);
    auto node = describe_inode(fd->get(), *attributes, id, false);
    if (!node) return 0;
    changes_.push_back(PutNode{std::move(*node)});
    changes_.push_back(PutName{parent_id, directory.place.name, id});
    tier_.names.known(ino, id, fd->get(), kept);
    ids_[ino] = id;
    return id;
  }

  // Tells the catalog of a node that it was about to hear of.
  void introduce(uint64_t id, const Marked& marked) {
    count_step();
    auto now = described(id, marked);
    if (!now) return;
    changes_.push_back(PutNode{std::move(*now)});
    for (const auto& [parent, name] : names_of(marked)) changes_.push_back(PutName{parent, name, id});
    if (marked.is_file) changes_.push_back(PutContent{id, marked.mark.content});
  }

  Result<CatalogNode> described(uint64_t id, const Marked& marked) {
    if (marked.plain) return describe_attributes(marked.attributes, id, is_pinned(marked));
    auto fd = pool_.arena_.open(marked.handle, O_PATH | O_NOFOLLOW);
    if (!fd) return pass(fd);
    return describe_inode(fd->get(), marked.attributes, id, is_pinned(marked));
  }

  KeptCtime adopted_ctime(uint64_t ino) {
    EntryTable::Shard& shard = pool_.entries_.shard(ino);
    MutexLock lock(shard.mutex);
    const Entry* const entry = shard.find(ino);
    return entry == nullptr ? KeptCtime() : entry->kept;
  }

  bool is_pinned(const Marked& marked) {
    EntryTable::Shard& shard = pool_.entries_.shard(marked.handle.ino);
    MutexLock lock(shard.mutex);
    const Entry* const entry = shard.find(marked.handle.ino);
    return entry != nullptr && entry->pinned;
  }

  void apply(uint64_t id, Marked& marked) {
    count_step();
    EntryTable::Shard& shard = pool_.entries_.shard(marked.handle.ino);
    MutexLock lock(shard.mutex);
    Entry* const entry = shard.find(marked.handle.ino);
    if (entry == nullptr || entry->removed) return;
    // An entry that was opened after its promotion has all its pages (is_cold() in pool_adopt.cc).
    const bool cold = marked.mark.state == CopyMark::State::kCold && entry->tier == Entry::Tier::kCold;
    const bool is_half_promoted = cold && marked.attributes.st_blocks > 0;
    if (is_half_promoted)
      if (auto file = pool_.arena_.open(marked.handle, O_RDWR | O_NONBLOCK)) {
        const UnseenChange unseen(entry->kept, file->get(), true);
        (void)pool_.arena_.drop_pages(file->get());
      }
    entry->disk.node_id = id;
    entry->version = std::max(marked.mark.content.version, marked.mark.first_version);
    entry->disk.first_version = marked.mark.first_version;
    entry->disk.emptied = marked.emptied;
    entry->disk.name_hash = name_hash_of(marked.places.front().name);
    const CatalogContent& content = shard.copies[marked.handle.ino] = std::move(marked.mark.content);
    if (marked.is_dirty()) return;
    const uint64_t data_bytes = data_bytes_of(content, tier_.store->unit_bytes());
    pool_.entries_.found_copy(*entry, cold ? std::optional(data_bytes) : std::nullopt);
    if (entry->direct_count > 0) {
      const auto held = shard.held.emplace(marked.handle.ino, content).first;
      tier_.store->hold(held->second);
    }
    if (cold && entry->pinned) (void)tier_.promoter.request(marked.handle.ino, Promoter::kOpenPriority - 1);
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

  Pool& pool_;
  DiskTier& tier_;
  const bool unfinished_;
  std::vector<Stray> strays_;
  std::vector<CatalogNames::Place> lost_names_;  // the tree has their files by other names
  std::vector<CatalogChange> dropped_;
  std::unordered_map<uint64_t, Marked> marked_;  // by the catalog's number
  std::unordered_map<uint64_t, Kept> kept_;      // by the catalog's number
  std::unordered_map<uint64_t, uint64_t> ids_;   // directories' numbers, by inode number
  struct Unnumbered {
    sys::Handle handle;
    Place place;
  };
  // Directories that the catalog does not have, by inode number.
  std::unordered_map<uint64_t, Unnumbered> unnumbered_;
  std::vector<CatalogChange> changes_;
  uint64_t lost_ = 0;
};

Result<Recovery::KnownNodes> Recovery::reconcile(DiskTier& tier, bool unfinished) {
  return Reconciler(pool_, tier, unfinished).run();
}

}  // namespace kvcachefs
