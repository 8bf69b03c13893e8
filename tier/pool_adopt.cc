// A pool taken over from a process that died: its files are where they were, and what that process knew of
// them beyond is found out again, by a walk of the tree and from what it wrote down (tier/survivors.h).
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "tier/children.h"
#include "tier/copy_mark.h"
#include "tier/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kStatBlockBytes = 512;  // st_blocks, stat(2)

struct Opens {
  uint32_t all = 0;
  uint32_t writers = 0;
  uint32_t from_disk = 0;
};

std::string xattr_of(int fd, const char* name) {
  std::array<char, 16> value{};
  const auto size = sys::get_xattr(fd, name, value);
  return size ? std::string(value.data(), *size) : std::string();
}

int64_t in_ns(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

int64_t real_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return in_ns(now);
}

// 0 for what is in the future.
uint64_t age_ms(const timespec& time) {
  return static_cast<uint64_t>(std::max<int64_t>(real_ns() - in_ns(time), 0)) / 1'000'000;
}

// The one place that says whether a file's own pages are its content: where they are not, nothing may take
// them for it. A cold entry has none, or some of them, of which nobody can say which; its mark is its
// content's. One that was cut to nothing has the size of it before its mark tells; one that somebody has open
// other than from the disk has all its pages.
bool is_cold(const std::optional<CopyMark>& mark, const struct stat& attributes, const Opens& opens) {
  if (!mark || opens.all > opens.from_disk) return false;
  const auto size = static_cast<uint64_t>(attributes.st_size);
  if (mark->state == CopyMark::State::kUnreadable) return size > 0 && attributes.st_blocks == 0;
  return mark->state == CopyMark::State::kCold && (size > 0 || mark->content.size_bytes == 0);
}

// By a process that died before the mark could tell: what is written from now on is its content.
bool was_cut(const std::optional<CopyMark>& mark, const struct stat& attributes) {
  return mark && mark->state == CopyMark::State::kCold && attributes.st_size == 0 &&
         mark->content.size_bytes > 0;
}

int number_in(std::string_view text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

class Pool::Adopter {
 public:
  explicit Adopter(Pool& pool) : pool_(pool), survivors_(*pool.surroundings_.survivors) {}

  void run() {
    survivors_.for_each_handle([this](const OpenHandle& handle) {
      if (handle.inode.pool != pool_.number_) return;
      Opens& opens = opens_[handle.inode.ino];
      ++opens.all;
      if (handle.writer) ++opens.writers;
      if (handle.from_disk) ++opens.from_disk;
    });
    survivors_.for_each_backing([this](const HeldBacking& backing, bool) {
      if (backing.inode.pool == pool_.number_) backings_[backing.inode.ino] = backing.id;
    });
    adopt_nameless();
    fault_point("adopted nameless");
    adopt_other(pool_.root_ino(), 0);
    adopt_tree();
    fault_point("adopted the tree");
    publish();
    // Of files that are gone: whoever has one open goes on without them.
    for (const auto& [ino, backing] : backings_) pool_.surroundings_.backing_store->give_back(backing);
  }

 private:
  struct Closed {
    int64_t used_ns;
    uint64_t ino;
  };

  void adopt_nameless() {
    for (const auto& [place, kept] : survivors_.kept()) {
      if (kept.inode.pool != pool_.number_) continue;
      const auto attributes = sys::stat_of(kept.fd);
      DescriptorBudget::Charge charge;
      if (attributes) charge = survivors_.descriptors().charge_held(attributes->st_uid, pool_.number_);
      KeptByDescriptor keeper(UniqueFd(kept.fd), &survivors_, place, std::move(charge));
      // It died before the last name went, or after a new one came.
      if (!attributes || attributes->st_ino != kept.inode.ino || attributes->st_nlink > 0) continue;
      const bool is_file = S_ISREG(attributes->st_mode);
      if (is_file && !opens_.contains(kept.inode.ino)) continue;
      const sys::Handle handle{kept.inode.ino, kept.generation};
      if (is_file) {
        const auto fd = pool_.arena_.open(handle, kReadForFacts);
        adopt_file(handle, *attributes, fd ? fd->get() : kept.fd, true);
      } else {
        adopt_other(handle.ino, handle.generation);
      }
      EntryTable::Shard& shard = pool_.table_.shard(kept.inode.ino);
      MutexLock lock(shard.mutex);
      Entry* const entry = shard.find(kept.inode.ino);
      entry->removed = true;
      shard.kept[kept.inode.ino] = std::move(keeper);
    }
  }

  void adopt_tree() {
    walk_tree(pool_.arena_, [this](int directory, uint64_t, const Child& child) {
      if (child.is_regular)
        adopt_named(child, directory);
      else if (const auto handle = sys::handle_at(directory, child.name.c_str()))
        adopt_other(handle->ino, handle->generation);
    });
  }

  void adopt_named(const Child& child, int directory) {
    {
      EntryTable::Shard& shard = pool_.table_.shard(child.ino);
      MutexLock lock(shard.mutex);
      if (shard.find(child.ino) != nullptr) return;  // another name of it
    }
    const auto fd = sys::open_at(directory, child.name.c_str(), kReadForFacts);
    if (!fd) return;
    const auto handle = sys::handle_of(fd->get());
    const auto attributes = sys::stat_of(fd->get());
    if (handle && attributes) adopt_file(*handle, *attributes, fd->get(), false);
  }

  void adopt_file(sys::Handle handle, const struct stat& attributes, int fd, bool nameless) {
    const auto found = opens_.find(handle.ino);
    const Opens opens = found == opens_.end() ? Opens{} : found->second;
    const uint64_t size = static_cast<uint64_t>(attributes.st_size);
    const uint64_t allocated = static_cast<uint64_t>(attributes.st_blocks) * kStatBlockBytes;
    EntryTable::Shard& shard = pool_.table_.shard(handle.ino);
    MutexLock lock(shard.mutex);
    Entry& entry = shard.find_or_make(handle.ino, handle.generation);
    Accounted accounted(pool_, entry);
    const auto mark = copy_mark_of(fd);
    const bool cold = is_cold(mark, attributes, opens);
    if (cold) entry.tier = Entry::Tier::kCold;
    entry.synced_nameless = nameless && mark && mark->synced_nameless;
    if (was_cut(mark, attributes)) {
      entry.node_id = mark->node_id;
      entry.first_version = mark->content.version + 1;
      pool_.mark_dirty(entry);
      entry.node_id = 0;  // for whoever looks at the mark
    }
    entry.stage = Entry::Stage::kWritten;
    entry.stored_ms = now_coarse_ms() - std::min(now_coarse_ms(), age_ms(attributes.st_mtim));
    const uint64_t whole = (size + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    entry.charged_bytes = cold ? whole : allocated;
    if (pool_.surroundings_.topology->node_count() > 1)
      entry.node = static_cast<int8_t>(pool_.surroundings_.topology->node_of_file(fd));
    entry.open_count = opens.all;
    entry.writer_count = opens.writers;
    entry.direct_count = opens.from_disk;
    if (has_other_xattrs(fd)) {
      entry.policy.priority = number_in(xattr_of(fd, "user.kv.priority"));
      entry.pinned = !nameless && xattr_of(fd, kPinnedXattr) == "1";
    }
    if (const auto backing = backings_.extract(handle.ino)) entry.backing = backing.mapped();
    if (opens.all > 0) {
      ++pool_.open_files_;
      if (entry.backing < 0 && opens.all > opens.from_disk) (void)pool_.back(entry);
    }
    if (opens.writers > 0) pool_.add_writer(handle.ino);
    // What was reserved for a writer lies beyond the end; nothing tells how far.
    if (allocated > whole && !cold) {
      entry.reserved_end = size + allocated;
      if (opens.writers == 0)
        if (auto file = pool_.arena_.open(handle, O_RDWR | O_NONBLOCK)) {
          (void)pool_.trim(entry, file->get());
          if (auto now = sys::stat_of(file->get()))
            entry.charged_bytes = static_cast<uint64_t>(now->st_blocks) * kStatBlockBytes;
        }
    }
    if (nameless) return;
    ++pool_.files_;
    if (size > 0 && opens.writers == 0) pool_.learner_.closed(size);
    if (opens.writers == 0)
      closed_.push_back({std::max(in_ns(attributes.st_atim), in_ns(attributes.st_mtim)), handle.ino});
  }

  // The kernel may know it: nothing says how often it was told.
  void adopt_other(uint64_t ino, uint32_t generation) {
    EntryTable::Shard& shard = pool_.table_.shard(ino);
    MutexLock lock(shard.mutex);
    Entry& entry = shard.find_or_make(ino, generation);
    entry.lookup_count = 1;
    entry.lookups_unknown = true;
  }

  // As if each were stored when it was last used. One that its client has not renamed yet is among the last,
  // and so leaves late, too.
  void publish() {
    std::ranges::sort(closed_, {}, &Closed::used_ns);
    for (const Closed& closed : closed_) {
      EntryTable::Shard& shard = pool_.table_.shard(closed.ino);
      MutexLock lock(shard.mutex);
      Entry& entry = *shard.find(closed.ino);
      Accounted accounted(pool_, entry);
      pool_.candidates_.fresh(entry);
      pool_.publish(entry);
      if (entry.pinned) pool_.candidates_.park(entry);
    }
  }

  Pool& pool_;
  Survivors& survivors_;
  std::unordered_map<uint64_t, Opens> opens_;
  std::unordered_map<uint64_t, int32_t> backings_;
  std::vector<Closed> closed_;
};

Result<std::shared_ptr<Pool>> Pool::adopt(uint16_t number, const PoolOptions& options,
                                          const Surroundings& surroundings) {
  auto arena = MemoryArena::adopt(surroundings.arena_path);
  if (!arena) return pass(arena);
  auto pool = std::make_shared<Pool>(number, options, surroundings, std::move(*arena));
  const uint64_t begun_ns = now_ns();
  Adopter(*pool).run();
  log_info("pool {}: taken over with {} entries in {} ms", options.name, pool->files_.load(),
           (now_ns() - begun_ns) / 1'000'000);
  return pool;
}

Result<Pool::Opened> Pool::adopted_open(uint64_t ino, bool from_disk) {
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  Entry* const entry = shard.find(ino);
  if (entry == nullptr || entry->open_count == 0) return fail(ESTALE);
  if (from_disk) {
    // There may be memory for it now, or it is there already: then others have it open with passthrough,
    // which does not go together with an open that is answered from the disk. Nameless it could not be opened
    // again.
    if (!entry->removed) return fail(kColdEntry);
    return Opened{.backing = -1, .from_disk = true};
  }
  if (auto backed = back(*entry); !backed) return pass(backed);
  return Opened{.backing = entry->backing, .from_disk = false};
}

void Pool::undo_create(int directory, const char* name) {
  const auto handle = sys::handle_at(directory, name);
  if (!handle) return;
  EntryTable::Shard& shard = table_.shard(handle->ino);
  MutexLock lock(shard.mutex);
  const auto attributes = sys::stat_at(directory, name);
  Entry* const entry = shard.find(handle->ino);
  if (!attributes || attributes->st_ino != handle->ino || !S_ISREG(attributes->st_mode) ||
      attributes->st_size > 0 || attributes->st_nlink > 1 || entry == nullptr || entry->open_count > 0)
    return;
  if (sys::unlink_at(directory, name, 0)) gone(shard, *entry, {});
}

}  // namespace kvcachefs
