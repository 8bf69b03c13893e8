// The disk tier of a pool that was taken over from a process that died. The tmpfs has what is true: its files
// say what the disk has of them (tier/copy_mark.h), and its tree how all is called. What had not come to the
// catalog yet, or had been taken out of it in memory alone, is made up for here.
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
#include "tier/children.h"
#include "tier/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kBlockBytes = 4096;

struct Place {
  uint64_t parent_ino = 0;
  std::string name;
};

struct Marked {
  sys::Handle handle;
  CopyMark mark;
  bool is_file = false;
  bool seen = false;   // the catalog has it
  bool plain = false;  // a file whose only xattr is the mark
  struct stat attributes {};
  std::vector<Place> places;
};

bool same_content(const CatalogContent& a, const CatalogContent& b) {
  return a.size_bytes == b.size_bytes && a.version == b.version && a.checksum.low == b.checksum.low &&
         a.checksum.high == b.checksum.high && a.extents == b.extents;
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

bool same_node(const CatalogNode& a, const CatalogNode& b) {
  return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.device == b.device &&
         a.pinned == b.pinned && same_time(a.accessed, b.accessed) && same_time(a.modified, b.modified) &&
         a.link_target == b.link_target && a.xattrs == b.xattrs;
}

}  // namespace

class Pool::Reconciler final : public CatalogVisitor {
 public:
  Reconciler(Pool& pool, DiskTier& tier) : pool_(pool), tier_(tier) {}

  Result<void> run() {
    walk();
    claim();
    fault_point("claimed what the disk has");
    if (auto loaded = tier_.store->catalog().load(*this); !loaded) return loaded;
    for (auto& [id, marked] : marked_)
      if (!marked.seen) introduce(id, marked);
    if (!changes_.empty()) {
      // Data is durable before the catalog names it.
      if (auto flushed = tier_.store->device().flush(); !flushed) return flushed;
      // What it gives back was never claimed here.
      if (auto committed = tier_.store->catalog().commit(changes_); !committed) return pass(committed);
      fault_point("made up for the catalog");
    }
    for (auto& [id, marked] : marked_)
      if (marked.is_file) apply(id, marked);
    if (lost_ > 0)
      log_warning("pool {}: {} entries were on the disk alone, and it has them no more", pool_.name_, lost_);
    log_info("pool {}: {} of what is there is on its disk too", pool_.name_, marked_.size());
    return {};
  }

  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    if (node.id == kCatalogRoot) return;
    const auto found = marked_.find(node.id);
    if (found == marked_.end() || found->second.is_file != (content != nullptr)) return drop(names);
    Marked& marked = found->second;
    marked.seen = true;
    // Whoever copied its pages back and died changed its times.
    if (is_half_promoted(marked)) {
      if (auto fd = pool_.arena_.open(marked.handle, O_PATH | O_NOFOLLOW))
        (void)sys::change_times(fd->get(), {node.accessed, node.modified});
      marked.attributes.st_atim = node.accessed;
      marked.attributes.st_mtim = node.modified;
    }
    if (auto now = described(node.id, marked); now && !same_node(*now, node))
      changes_.push_back(PutNode{std::move(*now)});
    std::set<std::pair<uint64_t, std::string>> wanted = names_of(marked);
    for (const CatalogName& name : names)
      if (wanted.erase({name.parent, std::string(name.name)}) == 0)
        changes_.push_back(DropName{name.parent, std::string(name.name)});
    for (const auto& [parent, name] : wanted) changes_.push_back(PutName{parent, name, node.id});
    if (content != nullptr && !same_content(*content, marked.mark.content))
      changes_.push_back(PutContent{node.id, marked.mark.content});
  }

  // What it has of it is with the file.
  void lost(CatalogLoss, uint64_t, std::string_view) override {}

 private:
  void walk() {
    walk_tree(pool_.arena_, [this](int directory, uint64_t directory_ino, const Child& child) {
      const int flags = child.is_regular ? kReadForFacts : O_PATH | O_NOFOLLOW;
      if (const auto fd = sys::open_at(directory, child.name.c_str(), flags))
        note(fd->get(), child.is_regular, {.parent_ino = directory_ino, .name = child.name});
    });
  }

  void note(int fd, bool is_file, Place place) {
    auto mark = copy_mark_of(fd);
    if (!mark || mark->node_id == 0) return;
    const auto handle = sys::handle_of(fd);
    const auto attributes = sys::stat_of(fd);
    if (!handle || !attributes) return;
    if (is_file && mark->state == CopyMark::State::kNone) return;  // dirty: the disk has nothing true of it
    const uint64_t id = mark->node_id;
    tier_.store->saw_id(id);
    Marked& marked = marked_[id];
    if (marked.places.empty()) {
      marked.handle = *handle;
      marked.mark = std::move(*mark);
      marked.is_file = is_file;
      marked.attributes = *attributes;
      marked.plain = is_file && !has_other_xattrs(fd);
    }
    marked.places.push_back(std::move(place));
    if (is_file) return;
    ids_[handle->ino] = id;
    tier_.names.known(handle->ino, id, -1);
  }

  void claim() {
    for (auto at = marked_.begin(); at != marked_.end();) {
      const Marked& marked = at->second;
      if (!marked.is_file || tier_.store->claim(marked.mark.content)) {
        ++at;
        continue;
      }
      if (marked.mark.state == CopyMark::State::kCold) discard(marked);
      at = marked_.erase(at);
    }
  }

  void discard(const Marked& marked) {
    ++lost_;
    EntryTable::Shard& shard = pool_.table_.shard(marked.handle.ino);
    MutexLock lock(shard.mutex);
    Entry* const entry = shard.find(marked.handle.ino);
    auto fd = pool_.arena_.open(marked.handle, O_PATH);
    if (entry != nullptr && fd && pool_.remove_names(*entry, fd->get())) pool_.gone(shard, *entry, {});
  }

  std::set<std::pair<uint64_t, std::string>> names_of(const Marked& marked) {
    std::set<std::pair<uint64_t, std::string>> result;
    for (const Place& place : marked.places) {
      if (place.parent_ino == pool_.root_ino()) {
        result.emplace(kCatalogRoot, place.name);
      } else if (const auto parent = ids_.find(place.parent_ino); parent != ids_.end()) {
        result.emplace(parent->second, place.name);
      }
    }
    return result;
  }

  // What the catalog was about to hear of.
  void introduce(uint64_t id, const Marked& marked) {
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
    return describe_inode(fd->get(), id, is_pinned(marked));
  }

  bool is_pinned(const Marked& marked) {
    EntryTable::Shard& shard = pool_.table_.shard(marked.handle.ino);
    MutexLock lock(shard.mutex);
    const Entry* const entry = shard.find(marked.handle.ino);
    return entry != nullptr && entry->pinned;
  }

  static bool is_half_promoted(const Marked& marked) {
    return marked.is_file && marked.mark.state == CopyMark::State::kCold && marked.attributes.st_blocks > 0;
  }

  void apply(uint64_t id, Marked& marked) {
    EntryTable::Shard& shard = pool_.table_.shard(marked.handle.ino);
    MutexLock lock(shard.mutex);
    Entry* const entry = shard.find(marked.handle.ino);
    if (entry == nullptr || entry->removed) return;
    const bool cold = marked.mark.state == CopyMark::State::kCold;
    if (is_half_promoted(marked))
      if (auto file = pool_.arena_.open(marked.handle, O_RDWR | O_NONBLOCK))
        (void)pool_.arena_.drop_pages(file->get());
    Accounted accounted(pool_, *entry);
    entry->node_id = id;
    entry->version = marked.mark.content.version;
    entry->name_hash = static_cast<uint32_t>(
        checksum_of(std::as_bytes(std::span(std::string_view(marked.places.front().name)))).low);
    const CatalogContent& content = shard.copies[marked.handle.ino] = std::move(marked.mark.content);
    if (cold) entry->charged_bytes = (content.size_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    pool_.candidates_.moved(*entry, cold ? Entry::Tier::kCold : Entry::Tier::kClean);
    if (entry->direct_count > 0) {
      const auto held = shard.held.emplace(marked.handle.ino, content).first;
      tier_.store->hold(held->second);
    }
    if (cold && entry->pinned) (void)tier_.promoter.request(marked.handle.ino, Promoter::kOpenPriority - 1);
  }

  void drop(std::span<const CatalogName> names) {
    for (const CatalogName& name : names) changes_.push_back(DropName{name.parent, std::string(name.name)});
  }

  Pool& pool_;
  DiskTier& tier_;
  std::unordered_map<uint64_t, Marked> marked_;  // by the catalog's number
  std::unordered_map<uint64_t, uint64_t> ids_;   // of directories, by inode number
  std::vector<CatalogChange> changes_;
  uint64_t lost_ = 0;
};

Result<void> Pool::reconcile(DiskTier& tier) {
  return Reconciler(*this, tier).run();
}

}  // namespace kvcachefs
