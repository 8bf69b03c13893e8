// What a pool's catalog has comes back as names in the tmpfs, cold.
#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/log.h"
#include "tier/pool.h"

namespace kvcachefs {
namespace {

// Directories kept open while their files are made; a pool's entries mostly lie in few.
constexpr size_t kOpenDirectories = 512;

// The most recently stored entries leave last, as if they had been stored in that order just now.
struct Stored {
  timespec modified{};
  uint64_t ino = 0;
};

}  // namespace

class Pool::Restorer final : public CatalogVisitor {
 public:
  Restorer(Pool& pool, DiskTier& tier) : pool_(pool), tier_(tier) {}

  void node(const CatalogNode& node, std::span<const CatalogName> names,
            const CatalogContent* content) override {
    if (node.id == kCatalogRoot) return;
    if (content != nullptr && !tier_.store->claim(*content)) {
      ++damaged_;
      return drop(names);
    }
    if (auto made = make(node, names, content); !made) {
      if (content != nullptr) tier_.store->give_back(content->extents);
      log_warning("pool {}: {} cannot be restored: errno {}", pool_.name_, std::string(names.front().name),
                  made.error().code);
      drop(names);
    }
  }

  void lost(CatalogLoss loss, uint64_t id, std::string_view name) override {
    if (losses_++ == 0)
      log_warning("pool {}: the catalog has lost something, the first: {} (node {}, '{}')", pool_.name_,
                  to_string(loss), id, name);
  }

  void finish() {
    std::ranges::sort(stored_, {}, [](const Stored& stored) {
      return std::pair(stored.modified.tv_sec, stored.modified.tv_nsec);
    });
    for (const Stored& stored : stored_) {
      EntryTable::Shard& shard = pool_.table_.shard(stored.ino);
      MutexLock lock(shard.mutex);
      Entry* entry = shard.find(stored.ino);
      if (entry == nullptr) continue;
      pool_.candidates_.publish(*entry);
      if (entry->pinned) {
        pool_.candidates_.park(*entry);
        (void)tier_.promoter.request(stored.ino, Promoter::kOpenPriority - 1);
      }
    }
    for (const auto& [fd_handle, node] : directory_times_) {
      if (auto fd = pool_.arena_.open(fd_handle, O_RDONLY | O_DIRECTORY))
        (void)sys::change_times(fd->get(), {node.first, node.second});
    }
    // Straight to the catalog, and its answer is nothing: what these say they had was never claimed, or is
    // another's.
    if (!dropped_.empty()) (void)tier_.store->catalog().commit(dropped_);
    if (damaged_ + losses_ > 0)
      log_warning("pool {}: {} entries of the catalog were dropped", pool_.name_, damaged_ + losses_);
    if (!stored_.empty()) log_info("pool {}: {} entries are back, cold", pool_.name_, stored_.size());
  }

 private:
  Result<int> directory(uint64_t id) {
    if (id == kCatalogRoot) return pool_.arena_.tree_fd();
    if (auto found = open_.find(id); found != open_.end()) return found->second.get();
    auto known = directories_.find(id);
    if (known == directories_.end()) return fail(ENOENT);
    if (open_.size() >= kOpenDirectories) open_.clear();
    auto fd = pool_.arena_.open(known->second, O_RDONLY | O_DIRECTORY);
    if (!fd) return pass(fd);
    return open_.emplace(id, std::move(*fd)).first->second.get();
  }

  Result<UniqueFd> make_inode(const CatalogNode& node, int parent, const char* name,
                              const CatalogContent* content) {
    const mode_t mode = node.mode & 07777;
    if (S_ISREG(node.mode)) {
      auto fd = sys::open_at(parent, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, mode);
      if (fd && content->size_bytes > 0)
        if (auto sized = sys::truncate(fd->get(), content->size_bytes); !sized) return pass(sized);
      return fd;
    }
    Result<void> made = S_ISDIR(node.mode)   ? sys::make_directory_at(parent, name, mode)
                        : S_ISLNK(node.mode) ? sys::symlink_at(node.link_target.c_str(), parent, name)
                                             : sys::make_node_at(parent, name, node.mode, node.device);
    // A pool that serves already may have the directory: what lies in it goes on together.
    if (!made && S_ISDIR(node.mode) && made.error().code == EEXIST)
      return sys::open_at(parent, name, O_PATH | O_NOFOLLOW | O_DIRECTORY);
    if (!made) return pass(made);
    return sys::open_at(parent, name, O_PATH | O_NOFOLLOW);
  }

  Result<void> make(const CatalogNode& node, std::span<const CatalogName> names,
                    const CatalogContent* content) {
    auto parent = directory(names.front().parent);
    if (!parent) return pass(parent);
    auto fd = make_inode(node, *parent, std::string(names.front().name).c_str(), content);
    if (!fd) return pass(fd);
    if (node.uid != 0 || node.gid != 0)
      if (auto owned = sys::change_owner(fd->get(), node.uid, node.gid); !owned) return owned;
    // The umask is 0, but a set-group-ID directory and a change of owner leave marks.
    if (!S_ISLNK(node.mode) && (S_ISDIR(node.mode) || (node.mode & 07000) != 0))
      if (auto moded = sys::change_mode(fd->get(), node.mode & 07777); !moded) return moded;
    for (const auto& [name, value] : node.xattrs) (void)sys::set_xattr(fd->get(), name.c_str(), value, 0);
    for (const CatalogName& more : names.subspan(1)) {
      auto other = directory(more.parent);
      if (other) (void)sys::link_to(fd->get(), *other, std::string(more.name).c_str());
    }
    (void)sys::change_times(fd->get(), {node.accessed, node.modified});
    auto handle = sys::handle_of(fd->get());
    if (!handle) return pass(handle);
    if (content == nullptr) {
      tier_.names.known(handle->ino, node.id);
      if (S_ISDIR(node.mode)) {
        directories_[node.id] = *handle;
        directory_times_.emplace_back(*handle, std::pair(node.accessed, node.modified));
      }
      return {};
    }
    adopt(node, *handle, *content, names.front().name);
    return {};
  }

  void adopt(const CatalogNode& node, sys::Handle handle, const CatalogContent& content,
             std::string_view name) {
    constexpr uint64_t kBlockBytes = 4096;
    EntryTable::Shard& shard = pool_.table_.shard(handle.ino);
    MutexLock lock(shard.mutex);
    Entry& entry = shard.find_or_make(handle.ino, handle.generation);
    Accounted accounted(pool_, entry);
    entry.stage = Entry::Stage::kCandidate;
    entry.tier = Entry::Tier::kCold;
    entry.node_id = node.id;
    entry.name_hash = static_cast<uint32_t>(checksum_of(std::as_bytes(std::span(name))).low);
    entry.version = content.version;
    entry.pinned = node.pinned;
    entry.stored_ms = now_coarse_ms();
    entry.charged_bytes = (content.size_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    for (const auto& [xattr, value] : node.xattrs)
      if (xattr == "user.kv.priority") entry.policy.priority = std::atoi(value.c_str());
    shard.copies[handle.ino] = content;
    ++pool_.files_;
    if (content.size_bytes > 0) pool_.learner_.closed(content.size_bytes);
    stored_.push_back({node.modified, handle.ino});
  }

  void drop(std::span<const CatalogName> names) {
    for (const CatalogName& name : names) dropped_.push_back(DropName{name.parent, std::string(name.name)});
  }

  Pool& pool_;
  DiskTier& tier_;
  std::unordered_map<uint64_t, sys::Handle> directories_;
  std::unordered_map<uint64_t, UniqueFd> open_;
  std::vector<std::pair<sys::Handle, std::pair<timespec, timespec>>> directory_times_;
  std::vector<Stored> stored_;
  std::vector<CatalogChange> dropped_;
  uint64_t damaged_ = 0;
  uint64_t losses_ = 0;
};

Result<void> Pool::restore(DiskTier& tier) {
  Restorer restorer(*this, tier);
  if (auto loaded = tier.store->catalog().load(restorer); !loaded) return loaded;
  restorer.finish();
  return {};
}

}  // namespace kvcachefs
