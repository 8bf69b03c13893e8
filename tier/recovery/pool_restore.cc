// The restore of a pool: what its catalog has comes back as names in the tmpfs, cold.
#include <algorithm>
#include <cerrno>

#include "alloc/tree_name.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "base/progress.h"
#include "base/sys_disk.h"
#include "tier/catalog/content_layout.h"
#include "tier/pool/counted_inode.h"
#include "tier/pool/recovery.h"
#include "tier/recovery/restored_directories.h"

namespace kvcachefs {
namespace {

constexpr unsigned kMostNamed = 10;  // warnings a minute in the log
// A mark is a system call of a microsecond or two; what came back since the last one cannot be removed.
constexpr unsigned kFilesAMark = 256;

// A stored entry to publish: in the order of `modified`, as if it were stored just now, so the latest leave
// last.
struct Stored {
  timespec modified{};
  uint64_t ino = 0;
};

struct Made {
  sys::Handle handle;
  bool is_directory = false;
};

bool is_for_want_of_descriptors(int code) {
  return code == EMFILE || code == ENFILE;
}

bool is_for_want_of_room(int code) {
  return code == ENOSPC || code == ENOMEM || is_for_want_of_descriptors(code);
}

}  // namespace

class Recovery::Restorer final : public CatalogVisitor, DiskPart {
 public:
  // `there`: the nodes that the tree has already, restored by a process that died or made before.
  // `use`: called when the directories are back, and from then on the pool is served.
  Restorer(const Recovery& its, DiskTier& tier, const KnownNodes& there, const std::function<void()>& use)
      : DiskPart(its),
        parts_(its.parts_),
        given_up_(its.given_up_),
        tier_(tier),
        there_(there),
        use_(use),
        serves_(parts_.inodes.root_is_known()) {}

  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    if (node.id == kCatalogRoot || given_up_ || failed_) return;
    directories_.to_be_filled(names);
    if (const auto there = there_.find(node.id); there != there_.end())
      go_on_with(node, there->second, names);
    else
      bring_back(node, names, content);
    if (!in_use_ || failed_) return;
    directories_.filled(names);
    came_to(node.id);
  }

  // What there is no room for among the directories makes the restore fail before anything is served.
  void directories_done() override {
    if (!use_ || given_up_ || lacks_) return;
    in_use_ = true;
    directories_.are_served();
    use_();
  }

  void lost(CatalogLoss loss, uint64_t id, std::string_view name) override {
    if (losses_++ == 0)
      log_warning("pool {}: the catalog has lost something, the first: {} (node {}, '{}')", name_,
                  to_string(loss), id, name);
  }

  // After an error all is as it was before the restore, except for what the catalog has dropped by itself; if
  // the tier is in use by then, what is back stays.
  Result<void> run() {
    Catalog& catalog = tier_.store->catalog();
    auto done = catalog.load(*this);
    if (done && given_up_) return fail(ECANCELED, "given up");
    if (done && failed_) done = fail(failed_->code, sys::error_text(failed_->code));
    if (done && lacks_)
      done = fail(lacks_->code, fmt::format("errno {}: {}", lacks_->code,
                                            too_small(arena_.usage().used_inodes() + lacking_)));
    // The dropped names go straight to the catalog, and the extents that it answers with are not freed: they
    // were never claimed, belong to another content, or were given back. If the names stayed, they would one
    // day take what is stored there next with them.
    if (done && !dropped_.empty())
      if (auto committed = catalog.commit(dropped_); !committed) done = pass(committed);
    if (!done) {
      if (!in_use_) take_back();
      return fail(done.error().code, fmt::format("pool {}: what its catalog has cannot be restored: {}",
                                                 name_, done.error().message));
    }
    finish();
    return {};
  }

 private:
  void bring_back(const CatalogNode& node, std::span<const CatalogName> names,
                  const CatalogContent* content) {
    if (content != nullptr && !tier_.store->claim(*content)) {
      ++damaged_;
      return drop(names);
    }
    if (auto made = make(node, names, content); made) {
      fault_point("restored", ++brought_back_);
      if (serves_) tell(names);
      return;
    } else {
      if (content != nullptr) tier_.store->give_back(content->extents);
      cannot_make(names, std::move(made.error()));
    }
  }

  void cannot_make(std::span<const CatalogName> names, Error error) {
    if (in_use_ && is_for_want_of_descriptors(error.code)) {
      failed_ = std::move(error);
      return;
    }
    if (is_for_want_of_room(error.code)) {
      ++lacking_;
      // A pool that is served drops it as if it were evicted, because its clients' files have the room. Else
      // it stays on the disk, for a pool that has the room.
      if (in_use_) return drop(names);
      if (!lacks_) lacks_ = std::move(error);
      return;
    }
    static LogLimit limit(kMostNamed);
    limit.warning("pool {}: {} cannot be restored: errno {}", name_, std::string(names.front().name),
                  error.code);
    drop(names);
  }

  // The mark comes first: what a client may remove, no successor brings back.
  void came_to(uint64_t id) {
    if (++since_mark_ < kFilesAMark) return;
    since_mark_ = 0;
    if (is_supervised() && !put_restoring(arena_.tree_fd(), id)) return;
    disk_.set_restored_up_to(id);
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
    directories_.put_times([this](int directory) { parts_.tree.note_if_empty(directory); });
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
    // A client may have renamed it, or removed one of its names, since a process that died came past it.
    if (node.id <= disk_.restored_up_to()) return;
    const auto fd = arena_.open(handle, O_PATH | O_NOFOLLOW);
    for (const CatalogName& name : names) {
      const auto parent = directories_.open(name.parent);
      if (fd && parent) link(fd->get(), *parent, name);
    }
  }

  void link(int fd, int parent, const CatalogName& name) {
    auto linked = sys::link_to(fd, parent, std::string(name.name).c_str());
    if (!linked && is_for_want_of_room(linked.error().code)) {
      if (in_use_)
        drop({&name, 1});
      else if (!lacks_)
        lacks_ = std::move(linked.error());
    }
  }

  void tell(std::span<const CatalogName> names) {
    for (const CatalogName& name : names) {
      auto parent = directories_.open(name.parent);
      auto attributes = parent ? sys::stat_of(*parent) : pass(parent);
      if (attributes) surroundings_.listener->appeared(number_, attributes->st_ino, std::string(name.name));
    }
  }

  // Goes backwards, because a directory can go only after what is in it. What a client has put into one
  // meanwhile stays, and so does the directory.
  void take_back() {
    for (; !made_.empty(); made_.pop_back()) {
      count_step();
      const Made& made = made_.back();
      EntryTable::Shard& shard = entries_.shard(made.handle.ino);
      const LockedEntry entry(shard, made.handle.ino);
      auto fd = arena_.open(made.handle, O_PATH | O_NOFOLLOW);
      if (!fd) continue;
      if (entry != nullptr) entries_.contents().lost_copies(*entry);
      Entry nameless;
      nameless.policy.ino = made.handle.ino;
      const bool removed = made.is_directory ? remove_directory(fd->get())
                                             : parts_.tree.remove_names(entry != nullptr ? *entry : nameless,
                                                                        fd->get()) == Tree::NamesLeft::kNone;
      if (removed) entries_.shares().gone(made.handle.ino);
      if (!removed || entry == nullptr) continue;
      auto kept = parts_.tree.keep_inode(handle_of(*entry), std::move(*fd));
      parts_.tree.gone(shard, *entry, RemovalReason::kDeleted, kept ? std::move(*kept) : KeptByDescriptor());
    }
  }

  bool remove_directory(int fd) {
    auto found = find_name(arena_, fd);
    if (!found || !sys::unlink_at(found->parent.get(), found->name.c_str(), AT_REMOVEDIR)) return false;
    limits_.lost_directory();
    return true;
  }

  // A file gets its name when all of it is there, above all its mark: if this process dies, nothing may take
  // the lack of pages for its content.
  Result<UniqueFd> make_file(const CatalogNode& node, int parent, const CatalogContent& content) {
    if (const int error = injected_error("restore a file")) return fail(error);
    auto fd = sys::open_at(parent, ".", O_TMPFILE | O_RDWR, node.mode & 07777);
    if (!fd) return fd;
    if (content.size_bytes > 0)
      if (auto sized = sys::truncate(fd->get(), content.size_bytes); !sized) return pass(sized);
    if (auto dressed = dress(node, fd->get()); !dressed) return pass(dressed);
    if (!is_supervised()) return fd;
    (void)restore_ctime(fd->get(), node.modified, node.changed, true);
    const CopyMark mark{.state = CopyMark::State::kCold, .node_id = node.id, .content = content};
    if (auto put = put_copy_mark(fd->get(), mark); !put) return pass(put);
    return fd;
  }

  // The name appears with the shard held: a client that looks it up finds the entry.
  Result<void> restore_file(const CatalogNode& node, int parent, std::span<const CatalogName> names,
                            const CatalogContent& content) {
    auto fd = make_file(node, parent, content);
    if (!fd) return pass(fd);
    auto handle = sys::handle_of(fd->get());
    if (!handle) return pass(handle);
    EntryTable::Shard& shard = entries_.shard(handle->ino);
    MutexLock lock(shard.mutex);
    if (auto named = sys::link_to(fd->get(), parent, std::string(names.front().name).c_str()); !named)
      return named;
    adopt(shard, node, *handle, fd->get(), content, names.front().name,
          restore_ctime(fd->get(), node.modified, node.changed, false));
    link_more(fd->get(), names);
    if (!in_use_) made_.push_back({*handle, false});
    return {};
  }

  void link_more(int fd, std::span<const CatalogName> names) {
    for (const CatalogName& more : names.subspan(1))
      if (auto other = directories_.open(more.parent)) link(fd, *other, more);
  }

  // `made`: the name is new, also if a later step fails.
  Result<UniqueFd> make_other(const CatalogNode& node, int parent, const char* name, bool& made) {
    const mode_t mode = node.mode & 07777;
    Result<void> done = S_ISDIR(node.mode)   ? sys::make_directory_at(parent, name, mode)
                        : S_ISLNK(node.mode) ? sys::symlink_at(node.link_target.c_str(), parent, name)
                                             : sys::make_node_at(parent, name, node.mode, node.device);
    made = done.has_value();
    if (made && S_ISDIR(node.mode)) limits_.made_directory();
    // A pool that serves already may have the directory: then both contents share it. A process that died may
    // have made the inode before.
    const bool may_be_there = S_ISDIR(node.mode) || !there_.empty();
    if (!done && !(may_be_there && done.error().code == EEXIST)) return pass(done);
    auto fd = sys::open_at(parent, name, O_PATH | O_NOFOLLOW);
    if (!fd) return fd;
    auto attributes = sys::stat_of(fd->get());
    if (!attributes) return pass(attributes);
    if ((attributes->st_mode & S_IFMT) != (node.mode & S_IFMT)) return fail(EEXIST);
    return fd;
  }

  Result<void> make(const CatalogNode& node, std::span<const CatalogName> names,
                    const CatalogContent* content) {
    auto parent = directories_.open(names.front().parent);
    if (!parent) return pass(parent);
    if (content != nullptr) return restore_file(node, *parent, names, *content);
    MutexLock tree(tier_.names.tree());  // an fsync would give it another number
    const std::string name(names.front().name);
    const bool is_directory = S_ISDIR(node.mode);
    bool is_new = false;
    auto fd = make_other(node, *parent, name.c_str(), is_new);
    auto dressed = fd ? dress(node, fd->get()) : pass(fd);
    auto handle = dressed ? sys::handle_of(fd->get()) : pass(dressed);
    if (!handle) {
      // A half-made inode would have a name that no client can look up.
      if (is_new && sys::unlink_at(*parent, name.c_str(), is_directory ? AT_REMOVEDIR : 0) && is_directory)
        limits_.lost_directory();
      return pass(handle);
    }
    link_more(fd->get(), names);
    if (is_new) made_.push_back({*handle, is_directory});
    const KeptCtime kept =
        is_new ? restore_ctime(fd->get(), node.modified, node.changed, is_supervised()) : KeptCtime();
    tier_.names.known(handle->ino, node.id, fd->get(), kept);
    {
      MutexLock lock(entries_.shard(handle->ino).mutex);
      count_inode(entries_, nullptr, fd->get());
    }
    if (is_directory) directories_.add(node, *handle);
    return {};
  }

  // Gives the inode what the catalog has besides names and content.
  static Result<void> dress(const CatalogNode& node, int fd) {
    // Also to root, because in a set-group-ID directory the inode has got that one's group.
    if (auto owned = sys::change_owner(fd, node.uid, node.gid); !owned) return pass(owned);
    // Because the umask is 0 the mode is right, except that a set-group-ID directory and a change of owner
    // change bits.
    if (!S_ISLNK(node.mode) && (S_ISDIR(node.mode) || (node.mode & 07000) != 0))
      if (auto moded = sys::change_mode(fd, node.mode & 07777); !moded) return pass(moded);
    for (const auto& [name, value] : node.xattrs)
      if (auto set = sys::set_xattr(fd, name.c_str(), value, 0); !set) return pass(set);
    (void)sys::change_times(fd, {node.accessed, node.modified});
    return {};
  }

  void adopt(EntryTable::Shard& shard, const CatalogNode& node, sys::Handle handle, int fd,
             const CatalogContent& content, std::string_view name, KeptCtime kept) REQUIRES(shard.mutex) {
    Entry& entry = shard.find_or_make(handle.ino, handle.generation);
    entry.disk.node_id = node.id;
    entry.kept = kept;
    entry.disk.name_hash = name_hash_of(name);
    entries_.contents().found_version(entry, content.version, 0);
    const uint64_t data_bytes = data_bytes_of(content, tier_.store->unit_bytes());
    (void)entries_.contents().copied(entry, content);
    entries_.found(entry, {.charged_bytes = rounded_up(data_bytes),
                           .whole_bytes = rounded_up(content.size_bytes),
                           .stored_ms = now_coarse_ms(),
                           .cold = true,
                           .pinned = node.pinned,
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

  void drop(std::span<const CatalogName> names) {
    for (const CatalogName& name : names) dropped_.push_back(DropName{name.parent, std::string(name.name)});
  }

  const Parts& parts_;
  const std::atomic<bool>& given_up_;
  DiskTier& tier_;
  const KnownNodes& there_;
  const std::function<void()>& use_;
  const bool serves_;  // a client may have looked for what comes back
  RestoredDirectories directories_{arena_};
  std::vector<Stored> stored_;
  std::vector<Made> made_;  // in the order in which they were made
  std::vector<CatalogChange> dropped_;
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

Result<void> Recovery::restore(DiskTier& tier, const KnownNodes& there, const std::function<void()>& use) {
  return Restorer(*this, tier, there, use).run();
}

}  // namespace kvcachefs
