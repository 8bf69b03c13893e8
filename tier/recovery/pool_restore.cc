// The restore of a pool: what its catalog has comes back as names in the tmpfs, cold.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <unordered_set>

#include "alloc/tree_name.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "base/progress.h"
#include "base/sys_disk.h"
#include "tier/catalog/content_layout.h"
#include "tier/index/metadata.h"
#include "tier/pool/counted_inode.h"
#include "tier/pool/recovery.h"
#include "tier/recovery/made_inodes.h"
#include "tier/recovery/restored_directories.h"
#include "tier/recovery/restored_inodes.h"

namespace kvcachefs {
namespace {

constexpr unsigned kMostWarned = 10;  // warnings a minute in the log
// A mark is a system call of a microsecond or two; what came back since the last one cannot be removed.
constexpr unsigned kFilesAMark = 256;
constexpr auto kLookAgain = std::chrono::milliseconds(5);

bool is_for_want_of_room(int code) {
  return code == ENOSPC || code == ENOMEM || code == EMFILE || code == ENFILE;
}

// Descriptors and the kernel's memory come back; the room of a pool that clients have filled does not, and
// after any other error another try would find the same.
bool is_passing(int code) {
  return is_for_want_of_room(code) && code != ENOSPC;
}

}  // namespace

class Recovery::Restorer final : public CatalogVisitor, DiskPart {
 public:
  // `there`: the nodes that the tree has already, restored by a process that died or made before.
  // `mark`: what that process has come to. `use`: called when the directories are back, and from then on the
  // pool is served.
  Restorer(const Recovery& its, DiskTier& tier, const KnownNodes& there, const RestoringMark& mark,
           const std::function<void()>& use)
      : DiskPart(its),
        parts_(its.parts_),
        given_up_(its.given_up_),
        tier_(tier),
        there_(there),
        up_to_(mark.up_to),
        changed_(mark.changed.begin(), mark.changed.end()),
        use_(use),
        serves_(parts_.inodes.root_is_known()) {}

  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    if (node.id == kCatalogRoot || given_up_ || failed_) return;
    if (!in_use_) return restore(node, names, content);
    if (!is_done(node.id) && !names_.is_back(node.id)) {
      directories_.to_be_filled(names);
      restore(node, names, content);
      directories_.filled();
    }
    if (node.id != wanted_ && !failed_) came_to(node.id);
  }

  void to_be_visited(const CatalogName& name, uint64_t id) override {
    if (use_ && !is_done(id)) names_.add(name.parent, name.name, id);
  }

  // What there is no room for among the directories makes the restore fail before anything is served. A
  // successor that goes on with the files leaves the directories' times as it finds them.
  void directories_done() override {
    if (!use_ || given_up_ || lacks_) return;
    if (up_to_ == 0) directories_.put_times(disk_);
    for (const auto& [id, handle] : directories_.all()) names_.add_directory(handle.ino, id);
    names_.add_directory(root_ino(), kCatalogRoot);
    names_.begin();
    came_to_directories();
    in_use_ = true;
    use_();
  }

  // A test can hold the restore where it still serves those who wait for a name.
  uint64_t wanted() override {
    if (!in_use_ || given_up_ || failed_) return 0;
    wanted_ = names_.next_wanted();
    while (wanted_ == 0 && is_held("restored", brought_back_) && !given_up_)
      wanted_ = names_.next_wanted(kLookAgain);
    return wanted_;
  }

  void lost(CatalogLoss loss, uint64_t id, std::string_view name) override {
    if (losses_++ == 0)
      log_warning("pool {}: the catalog has lost something, the first: {} (node {}, '{}')", name_,
                  to_string(loss), id, name);
  }

  // After an error all is as it was before the restore, except for what the catalog has dropped by itself; if
  // the tier is in use by then, what is back stays.
  Result<void> run() {
    auto done = load();
    // The pool is served from the names that are back, also after a failure.
    names_.end(done ? NamesToCome::Outcome::kAllAreBack : NamesToCome::Outcome::kSomeAreNot);
    return done;
  }

 private:
  // A stored entry to publish: in the order of `modified`, as if it were stored just now, so the latest leave
  // last.
  struct Stored {
    timespec modified{};
    uint64_t ino = 0;
  };

  Result<void> load() {
    Catalog& catalog = tier_.store->catalog();
    auto done = catalog.load(*this);
    if (done && failed_) done = fail(failed_->code, sys::error_text(failed_->code));
    if (done && lacks_)
      done = fail(lacks_->code, fmt::format("errno {}: {}", lacks_->code,
                                            too_small(arena_.usage().used_inodes() + lacking_)));
    // The dropped names go straight to the catalog, and the extents that it answers with are not freed: they
    // were never claimed, belong to another content, or were given back. If the names stayed, they would one
    // day take what is stored there next with them.
    if ((done || in_use_) && !dropped_.empty())
      if (auto committed = catalog.commit(dropped_); done && !committed) done = pass(committed);
    if (done && given_up_) return fail(ECANCELED, "given up");
    if (!done) {
      if (!in_use_) made_.take_back();
      return fail(done.error().code, fmt::format("pool {}: what its catalog has cannot be restored: {}",
                                                 name_, done.error().message));
    }
    finish();
    return {};
  }

  // That process has come past it, or a client has changed its names there: what is missing was removed.
  bool is_done(uint64_t id) const { return id <= up_to_ || changed_.contains(id); }

  void restore(const CatalogNode& node, std::span<const CatalogName> names, const CatalogContent* content) {
    if (const auto there = there_.find(node.id); there != there_.end())
      go_on_with(node, there->second, names);
    else
      bring_back(node, names, content);
  }

  void bring_back(const CatalogNode& node, std::span<const CatalogName> names,
                  const CatalogContent* content) {
    if (content != nullptr && !tier_.store->claim(*content)) {
      ++damaged_;
      return drop(node.id, names);
    }
    if (auto made = make(node, names, content); made) {
      fault_point("restored", ++brought_back_);
      if (serves_) tell(names);
      return;
    } else {
      if (content != nullptr) tier_.store->give_back(content->extents);
      cannot_make(node.id, names, std::move(made.error()));
    }
  }

  void cannot_make(uint64_t id, std::span<const CatalogName> names, Error error) {
    // The next start has it.
    if (in_use_ && is_passing(error.code)) {
      failed_ = std::move(error);
      return;
    }
    if (is_for_want_of_room(error.code)) {
      ++lacking_;
      // A pool that is served drops it as if it were evicted, because its clients' files have the room. Else
      // it stays on the disk, for a pool that has the room.
      if (in_use_) return drop(id, names);
      if (!lacks_) lacks_ = std::move(error);
      return;
    }
    static LogLimit limit(kMostWarned);
    limit.warning("pool {}: {} cannot be restored: errno {}", name_, std::string(names.front().name),
                  error.code);
    drop(id, names);
  }

  void came_to(uint64_t id) {
    names_.came_to(id);
    disk_.changed_names().came_to(id);
    if (++since_mark_ < kFilesAMark) return;
    since_mark_ = 0;
    disk_.changed_names().mark_reached();
  }

  void came_to_directories() {
    disk_.changed_names().begin(
        is_supervised() ? arena_.tree_fd() : -1, last_,
        {.up_to = std::max(up_to_, kCatalogRoot), .changed = {changed_.begin(), changed_.end()}});
    disk_.changed_names().mark_reached();
    names_.came_to(up_to_);
  }

  void finish() {
    std::ranges::sort(stored_, {}, [](const Stored& stored) {
      return std::pair(stored.modified.tv_sec, stored.modified.tv_nsec);
    });
    for (const Stored& stored : stored_) {
      count_step();
      const LockedEntry entry(entries_.shard(stored.ino), stored.ino);
      if (entry != nullptr) found_stored(*entry);
    }
    if (!in_use_) directories_.put_times(disk_);
    directories_.visit([this](int directory, bool is_changed) {
      parts_.tree.note_if_empty(directory);
      const auto attributes = is_changed ? sys::stat_of(directory) : fail(ENODATA);
      if (attributes) disk_.note_changed(attributes->st_ino);  // of which the catalog hears in the end
    });
    if (damaged_ + losses_ > 0)
      log_warning("pool {}: {} entries of the catalog were dropped", name_, damaged_ + losses_);
    if (in_use_ && lacking_ > 0)
      log_warning("pool {}: {} entries of the catalog were dropped, because its clients' files have the room",
                  name_, lacking_);
    if (back_ > 0) log_info("pool {}: {} entries are back, cold", name_, back_);
  }

  void found_stored(Entry& entry) {
    entries_.found_stored(entry);
    if (entry.pinned) (void)tier_.promoter.request(entry.policy.ino, Promoter::kOpenPriority - 1);
  }

  // A node of the tree may lack some of its names; a directory's times have changed with what is made in it.
  void go_on_with(const CatalogNode& node, sys::Handle handle, std::span<const CatalogName> names) {
    if (S_ISDIR(node.mode)) {
      directories_.add(node, handle);
      return;
    }
    const auto fd = arena_.open(handle, O_PATH | O_NOFOLLOW);
    for (const CatalogName& name : names) {
      const auto parent = directories_.open(name.parent);
      if (fd && parent) link(node.id, fd->get(), *parent, name);
    }
  }

  void link(uint64_t id, int fd, int parent, const CatalogName& name) {
    const std::string its_name(name.name);
    auto linked = sys::link_to(fd, parent, its_name.c_str());
    if (linked) return;
    const int code = linked.error().code;
    if (code == EEXIST) {
      if (in_use_ && !is_named(fd, parent, its_name)) drop(id, {&name, 1});
    } else if (in_use_ && is_passing(code)) {
      failed_ = std::move(linked.error());
    } else if (in_use_ && code != ENOENT) {
      drop(id, {&name, 1});
    } else if (!in_use_ && is_for_want_of_room(code) && !lacks_) {
      lacks_ = std::move(linked.error());
    }
  }

  static bool is_named(int fd, int parent, const std::string& name) {
    const auto its = sys::stat_of(fd), found = sys::stat_at(parent, name.c_str());
    return its && found && its->st_ino == found->st_ino;
  }

  void tell(std::span<const CatalogName> names) {
    for (const CatalogName& name : names) {
      auto parent = directories_.open(name.parent);
      auto attributes = parent ? sys::stat_of(*parent) : pass(parent);
      if (attributes) surroundings_.listener->appeared(number_, attributes->st_ino, std::string(name.name));
    }
  }

  // The name appears with the shard held: a client that looks it up finds the entry.
  Result<void> restore_file(const CatalogNode& node, int parent, std::span<const CatalogName> names,
                            const CatalogContent& content) {
    auto fd = make_restored_file(node, parent, content, is_supervised());
    if (!fd) return pass(fd);
    auto handle = sys::handle_of(fd->get());
    if (!handle) return pass(handle);
    EntryTable::Shard& shard = entries_.shard(handle->ino);
    MutexLock lock(shard.mutex);
    auto named = sys::link_to(fd->get(), parent, std::string(names.front().name).c_str());
    while (!named && named.error().code == EEXIST && names.size() > 1) {
      drop(node.id, names.first(1));
      names = names.subspan(1);
      auto other = directories_.open(names.front().parent);
      named = other ? sys::link_to(fd->get(), *other, std::string(names.front().name).c_str()) : pass(other);
    }
    if (!named) return named;
    adopt(shard, node, *handle, fd->get(), content, names.front().name,
          restore_ctime(fd->get(), node.modified, node.changed, false));
    link_more(node.id, fd->get(), names);
    if (!in_use_) made_.add(*handle, false);
    return {};
  }

  void link_more(uint64_t id, int fd, std::span<const CatalogName> names) {
    for (const CatalogName& more : names.subspan(1))
      if (auto other = directories_.open(more.parent)) link(id, fd, *other, more);
  }

  Result<void> make(const CatalogNode& node, std::span<const CatalogName> names,
                    const CatalogContent* content) {
    auto parent = directories_.open(names.front().parent);
    if (!parent) return pass(parent);
    if (content != nullptr) return restore_file(node, *parent, names, *content);
    std::optional<MutexLock> tree(tier_.names.tree());  // an fsync would give it another number
    const std::string name(names.front().name);
    const bool is_directory = S_ISDIR(node.mode);
    bool is_new = false;
    // A pool that serves already may have the directory: then both contents share it. A process that died may
    // have made the inode before.
    auto fd = make_restored_inode(node, *parent, name.c_str(), is_directory || !there_.empty(), is_new);
    if (is_new && is_directory) limits_.made_directory();
    auto dressed = fd ? dress(node, fd->get()) : pass(fd);
    auto handle = dressed ? sys::handle_of(fd->get()) : pass(dressed);
    if (!handle) {
      // A half-made inode would have a name that no client can look up.
      if (is_new && sys::unlink_at(*parent, name.c_str(), is_directory ? AT_REMOVEDIR : 0) && is_directory)
        limits_.lost_directory();
      return pass(handle);
    }
    link_more(node.id, fd->get(), names);
    if (is_new) made_.add(*handle, is_directory);
    const KeptCtime kept =
        is_new ? restore_ctime(fd->get(), node.modified, node.changed, is_supervised()) : KeptCtime();
    tier_.names.known(handle->ino, node.id, fd->get(), kept);
    if (is_directory) directories_.add(node, *handle);
    tree.reset();  // a shard's lock comes before it
    MutexLock lock(entries_.shard(handle->ino).mutex);
    count_inode(entries_, nullptr, fd->get());
    return {};
  }

  void adopt(EntryTable::Shard& shard, const CatalogNode& node, sys::Handle handle, int fd,
             const CatalogContent& content, std::string_view name, KeptCtime kept) REQUIRES(shard.mutex) {
    Entry& entry = shard.find_or_make(handle.ino, handle.generation);
    entry.disk.node_id = node.id;
    entry.kept = kept;
    entry.disk.name_hash = name_hash_of(name);
    entries_.contents().found_version(entry, content.version, 0);
    (void)entries_.contents().copied(entry, content);
    entries_.found(entry, {.charged_bytes = rounded_up(data_bytes_of(content, tier_.store->unit_bytes())),
                           .whole_bytes = rounded_up(content.size_bytes),
                           .stored_ms = now_coarse_ms(),
                           .cold = true,
                           .pinned = node.pinned,
                           .described = has_metadata(node.xattrs),
                           .stage = Entry::Stage::kCandidate});
    count_inode(entries_, &entry, fd);
    for (const auto& [xattr, value] : node.xattrs)
      if (xattr == "user.kv.priority") entry.policy.priority = std::atoi(value.c_str());
    if (content.size_bytes > 0 && !has_holes(content.extents)) capacity_.stored(content.size_bytes);
    ++back_;
    // Those that come back while the pool is served become candidates in the order in which they were stored
    // first.
    if (in_use_)
      found_stored(entry);
    else
      stored_.push_back({node.modified, handle.ino});
  }

  // The names are free from now on: a successor must not bring them back. Where the mark has no room for
  // that, it may.
  void drop(uint64_t id, std::span<const CatalogName> names) {
    if (in_use_) (void)disk_.changed_names().note(id);
    for (const CatalogName& name : names) dropped_.push_back(DropName{name.parent, std::string(name.name)});
  }

  const Parts& parts_;
  const std::atomic<bool>& given_up_;
  DiskTier& tier_;
  const KnownNodes& there_;
  const uint64_t last_ = tier_.store->catalog().highest_id();
  const uint64_t up_to_;
  const std::unordered_set<uint64_t> changed_;
  const std::function<void()>& use_;
  const bool serves_;  // a client may have looked for what comes back
  RestoredDirectories directories_{arena_};
  std::vector<Stored> stored_;
  MadeInodes made_{*this, parts_.tree};
  std::vector<CatalogChange> dropped_;
  NamesToCome& names_ = disk_.names_to_come();
  uint64_t wanted_ = 0;  // out of turn
  bool in_use_ = false;
  uint64_t brought_back_ = 0;
  uint64_t back_ = 0;  // entries
  unsigned since_mark_ = 0;
  uint64_t damaged_ = 0;
  uint64_t losses_ = 0;
  std::optional<Error> failed_;  // ends the restore while the tier is in use
  std::optional<Error> lacks_;   // the first error for want of room
  uint64_t lacking_ = 0;
};

Result<void> Recovery::restore(DiskTier& tier, const KnownNodes& there, const RestoringMark& mark,
                               const std::function<void()>& use) {
  return Restorer(*this, tier, there, mark, use).run();
}

}  // namespace kvcachefs
