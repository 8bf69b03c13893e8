// A pool taken over from a process that died. Its files are where they were. What that process knew of them
// besides is found out again, by a walk of the tree and from what the process wrote down
// (tier/survivors/survivors.h). A file that a client asks for during the walk is found at once.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/progress.h"
#include "base/sys_disk.h"
#include "tier/catalog/content_layout.h"
#include "tier/catalog/copy_mark.h"
#include "tier/children.h"
#include "tier/index/metadata.h"
#include "tier/pool/counted_inode.h"
#include "tier/pool/recovery.h"
#include "tier/recovery/known_opens.h"

namespace kvcachefs {
namespace {

std::string xattr_of(int fd, const char* name) {
  std::array<char, 16> value{};
  const auto size = sys::get_xattr(fd, name, value);
  return size ? std::string(value.data(), *size) : std::string();
}

int64_t epoch_ns(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

int64_t real_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return epoch_ns(now);
}

// 0 for a time in the future.
uint64_t ms_since(const timespec& time) {
  return static_cast<uint64_t>(std::max<int64_t>(real_ns() - epoch_ns(time), 0)) / 1'000'000;
}

// The one place that says whether a file's own pages are its content: where they are not, nothing may take
// them for it. A cold entry's file has no pages, or some, and nothing tells which; its mark describes its
// content. An entry that was truncated to 0 bytes has that size before its mark tells. An entry that is open
// otherwise than from the disk has all its pages.
bool is_cold(const std::optional<CopyMark>& mark, const struct stat& attributes,
             const Entries::Found& facts) {
  if (!mark || facts.open_count > facts.direct_count) return false;
  const auto size = size_of(attributes);
  if (mark->state == CopyMark::State::kUnreadable) return size > 0 && attributes.st_blocks == 0;
  return mark->state == CopyMark::State::kCold && (size > 0 || mark->content.size_bytes == 0);
}

// True if a process truncated the file to 0 bytes and died before the mark could tell: what is written from
// now on is the content.
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

class Recovery::Adopter : DiskPart {
 public:
  explicit Adopter(const Recovery& its)
      : DiskPart(its), parts_(its.parts_), survivors_(*surroundings_.survivors) {}

  Result<void> begin() {
    opens_.begin(survivors_, number_);
    adopt_nameless();
    fault_point("adopted nameless");
    if (capacity_.closed()) return whole();
    adopt_other(root_ino(), 0);
    // Clients cannot find what is in a directory that was not found. What fails here does so again in walk().
    (void)walk_tree(
        arena_,
        [this](int directory, uint64_t, const Child& child) {
          if (const auto handle = sys::handle_at(directory, child.name.c_str()))
            adopt_other(handle->ino, handle->generation);
        },
        Walk::kNotFiles);
    return whole();
  }

  Result<void> walk() {
    fault_point("walk begun");
    adopt_tree();
    fault_point("adopted the tree");
    // From here on nothing is adopted, also by a find() that is under way: it takes the shard first.
    walked_ = true;
    for (EntryTable::Shard& shard : entries_.shards()) MutexLock lock(shard.mutex);
    if (auto found = whole(); !found) return found;
    publish();
    for (const int32_t backing : opens_.end()) surroundings_.backing_store->give_back(backing);
    // Only the client of an ended connection that has a file without a name open can use that file.
    std::erase_if(opens_.lost_writers(), [this](const OpenHandle& handle) {
      if (knows(handle.inode.ino)) return false;
      survivors_.handles().closed(handle.lost);
      return true;
    });
    parts_.open_files.found_lost_writers(std::move(opens_.lost_writers()));
    return {};
  }

  // Any thread, during walk(): false if what has the name cannot be looked at, if it is not found once walk()
  // has ended, because it is being restored, or if it may be still to be restored.
  bool find(int directory, const char* name) {
    const auto handle = sys::handle_at(directory, name);
    if (!handle) return !lacks_names_;  // there is nothing, as the caller will see
    if (knows(handle->ino)) return true;
    const auto attributes = sys::stat_at(directory, name);
    if (!attributes) return false;
    if (!S_ISREG(attributes->st_mode)) {
      adopt_other(handle->ino, handle->generation);
    } else {
      const auto fd = sys::open_at(directory, name, kReadForFacts);
      if (!fd || !adopt_open_file(fd->get())) return false;
    }
    return knows(handle->ino);
  }

  bool is_open(uint64_t ino) { return opens_.is_open(ino); }

  std::vector<uint64_t> nameless_directories;  // and nameless links and other inodes without content

 private:
  struct Closed {
    int64_t used_ns;
    uint64_t ino;
  };

  // What could not be looked at would count as gone.
  Result<void> whole() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return whole_;
  }
  bool knows(uint64_t ino) { return LockedEntry(entries_.shard(ino), ino) != nullptr; }

  void adopt_nameless() {
    for (const auto& [place, kept] : survivors_.kept_inodes().list()) {
      count_step();
      if (kept.inode.pool != number_) continue;
      const auto attributes = sys::stat_of(kept.fd);
      DescriptorBudget::Charge charge;
      if (attributes) charge = survivors_.descriptors().charge_held(attributes->st_uid, number_);
      KeptByDescriptor keeper(UniqueFd(kept.fd), &survivors_.kept_inodes(), place, std::move(charge));
      // The process died before the last name went, or after a new one came.
      if (!attributes || attributes->st_ino != kept.inode.ino || attributes->st_nlink > 0) continue;
      const bool is_file = S_ISREG(attributes->st_mode);
      if (is_file && !is_open(kept.inode.ino)) continue;
      const sys::Handle handle{kept.inode.ino, kept.generation};
      if (is_file) {
        auto fd = arena_.open(handle, kReadForFacts);
        if (auto adopted = fd ? adopt_file(handle, *attributes, fd->get(), true) : pass(fd); !adopted)
          note_failure(adopted.error());
      } else {
        adopt_other(handle.ino, handle.generation, false);
        nameless_directories.push_back(handle.ino);
      }
      EntryTable::Shard& shard = entries_.shard(kept.inode.ino);
      MutexLock lock(shard.mutex);
      shard.kept[kept.inode.ino] = std::move(keeper);
    }
  }

  void adopt_tree() {
    const auto other = [this](int directory, uint64_t, const Child& child) {
      const auto handle = sys::handle_at(directory, child.name.c_str());
      if (!handle) return;
      adopt_other(handle->ino, handle->generation);
      if (child.is_directory) limits_.made_directory();
      count_other(directory, child.name.c_str());
      parts_.tree.empty_directories()->rests({.handle = *handle, .age_unknown = true}, 0);
    };
    const auto file = [this](int directory, uint64_t, const Child& child) {
      if (auto adopted = adopt_named(child, directory); !adopted) note_failure(adopted.error());
    };
    if (auto whole = walk_tree(arena_, surroundings_.on_several_threads, other, file); !whole)
      note_failure(whole.error());
  }

  void note_failure(const Error& error) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (whole_) whole_ = fail(EIO, "not all of its files can be looked at: " + sys::error_text(error.code));
  }

  Result<void> adopt_named(const Child& child, int directory) {
    if (knows(child.ino)) return {};  // by another name, or a client has asked for it
    const int refused = injected_error("look at a file");
    auto fd = refused != 0 ? fail(refused) : sys::open_at(directory, child.name.c_str(), kReadForFacts);
    return fd ? adopt_open_file(fd->get()) : pass(fd);
  }

  Result<void> adopt_open_file(int fd) {
    auto handle = sys::handle_of(fd);
    auto attributes = sys::stat_of(fd);
    if (!handle) return pass(handle);
    return attributes ? adopt_file(*handle, *attributes, fd, false) : pass(attributes);
  }

  Result<void> adopt_file(sys::Handle handle, struct stat attributes, int fd, bool nameless) {
    const uint64_t size = size_of(attributes);
    const uint64_t allocated = allocated_bytes_of(attributes);
    EntryTable::Shard& shard = entries_.shard(handle.ino);
    MutexLock lock(shard.mutex);
    if (walked_ || shard.find(handle.ino) != nullptr) return {};
    const auto mark = copy_mark_of(fd);
    if (mark && mark->error != 0) return fail(mark->error);
    KnownOpens::Of opens = opens_.take(handle.ino);
    Entries::Found& facts = opens.facts;
    Entry& entry = shard.find_or_make(handle.ino, handle.generation);
    entry.kernel.may_be_known = true;
    entry.kept = adopt_ctime(fd, attributes, facts.writer_count > 0);
    const bool cold = facts.cold = is_cold(mark, attributes, facts);
    entry.disk.synced_nameless = mark && mark->synced_nameless;  // the name may have come since
    if (mark && mark->state == CopyMark::State::kNone)
      entries_.contents().found_version(entry, mark->first_version, mark->first_version);
    if (was_cut(mark, attributes)) {
      entry.disk.node_id = mark->node_id;
      entries_.contents().found_version(entry, entry.version, mark->content.version + 1);
      (void)parts_.marks.mark_copy(entry, fd, CopyMark::State::kNone, nullptr);
      entry.disk.node_id = 0;  // set again from the mark
    }
    const uint64_t now_ms = now_coarse_ms();
    facts.stored_ms = now_ms - std::min(now_ms, ms_since(attributes.st_mtim));
    const uint64_t whole = rounded_up(size);
    if (surroundings_.topology->node_count() > 1)
      entry.memory.node = static_cast<int8_t>(surroundings_.topology->node_of_file(fd));
    if (has_other_xattrs(fd)) {
      entry.policy.priority = number_in(xattr_of(fd, "user.kv.priority"));
      facts.pinned = !nameless && xattr_of(fd, kPinnedXattr) == "1";
      facts.described = has_metadata(fd);
    }
    facts.charged_bytes = cold ? whole : allocated;
    facts.whole_bytes = whole;
    facts.named = !nameless;
    entries_.found(entry, facts);
    entry.kernel.backing = opens.backing;
    count_inode(entries_, &entry, fd, attributes);
    if (opens.lacks_backing()) (void)parts_.open_files.back(entry);
    if (facts.writer_count > 0) adopt_writer(entry, allocated);
    // Blocks beyond the end were reserved for a writer; nothing tells how far.
    if (allocated > whole && !cold) {
      entry.memory.reserved_end = size + allocated;
      if (facts.writer_count == 0) trim(entry, handle);
    }
    if (nameless || facts.writer_count > 0) return {};
    if (size > 0 && (cold ? !has_holes(mark->content.extents) : allocated >= size)) capacity_.stored(size);
    MutexLock closed(mutex_);
    closed_.push_back({std::max(epoch_ns(attributes.st_atim), epoch_ns(attributes.st_mtim)), handle.ino});
    return {};
  }

  void trim(Entry& entry, sys::Handle handle) {
    auto file = arena_.open(handle, O_RDWR | O_NONBLOCK);
    if (!file) return;
    (void)parts_.reservations.trim(entry, file->get());
    if (auto now = sys::stat_of(file->get())) entries_.contents().charged(entry, allocated_bytes_of(*now));
  }

  void adopt_writer(const Entry& entry, uint64_t allocated) {
    Writers& writers = capacity_.writers();
    writers.open(entry.policy.ino, allocated, !surroundings_.backing_store->needs_write_access());
    writers.owned(entry.policy.ino, entry.policy.owner);
  }

  void count_other(int directory, const char* name) {
    auto fd = sys::open_at(directory, name, O_PATH | O_NOFOLLOW);
    const auto attributes = fd ? sys::stat_of(fd->get()) : pass(fd);
    if (!attributes) return note_failure(attributes.error());
    MutexLock lock(entries_.shard(attributes->st_ino).mutex);
    count_inode(entries_, nullptr, fd->get(), *attributes);
  }

  // The kernel may know the inode; nothing tells how many lookups it was told.
  void adopt_other(uint64_t ino, uint32_t generation, bool named = true) {
    EntryTable::Shard& shard = entries_.shard(ino);
    MutexLock lock(shard.mutex);
    if (walked_ || shard.find(ino) != nullptr) return;
    Entry& entry = shard.find_or_make(ino, generation);
    entry.kernel.lookup_count = 1;
    entry.kernel.lookups_unknown = true;
    entry.kernel.missed_in = true;  // unknown, so assumed
    entries_.found(entry, {.named = named, .stage = Entry::Stage::kOther});
  }

  // Publishes every closed entry as if it were stored when it was last used. An entry that its client has not
  // renamed yet is among the last, and so leaves late, too; what clients have opened meanwhile leaves last.
  void publish() {
    std::vector<Closed> closed;
    {
      MutexLock lock(mutex_);
      closed.swap(closed_);
    }
    std::ranges::sort(closed, {}, &Closed::used_ns);
    std::vector<uint64_t> opened;
    for (const Closed& each : closed) {
      count_step();
      const LockedEntry entry(entries_.shard(each.ino), each.ino);
      if (entry->hits > 0)
        opened.push_back(each.ino);
      else
        entries_.found_stored(*entry);
    }
    for (const uint64_t ino : opened) {
      const LockedEntry entry(entries_.shard(ino), ino);
      entries_.found_stored(*entry);
    }
  }

  const Parts& parts_;
  Survivors& survivors_;
  const bool lacks_names_ = restoring_up_to(arena_.tree_fd()).has_value();
  std::atomic<bool> walked_{false};
  Mutex mutex_;
  Result<void> whole_ GUARDED_BY(mutex_);
  KnownOpens opens_;
  std::vector<Closed> closed_ GUARDED_BY(mutex_);
};

Recovery::Recovery(const DiskPart& part, const Parts& parts) : DiskPart(part), parts_(parts) {}

Recovery::~Recovery() = default;

Result<void> Recovery::begin_adopting() {
  adopter_ = std::make_unique<Adopter>(*this);
  adopting_ = true;
  parts_.open_files.publish_at_close(false);
  return adopter_->begin();
}

Result<std::vector<uint64_t>> Recovery::adopt() {
  auto whole = adopter_->walk();
  parts_.open_files.publish_at_close(true);
  if (!whole) return pass(whole);
  return std::move(adopter_->nameless_directories);
}

bool Recovery::find(uint64_t directory_ino, const char* name) {
  const auto directory = parts_.inodes.directory(directory_ino);
  return directory && adopter_->find(directory->fd, name);
}

bool Recovery::has_found(uint64_t ino) {
  return LockedEntry(entries_.shard(ino), ino) != nullptr;
}

bool Recovery::is_open(uint64_t ino) {
  return adopter_->is_open(ino);
}

bool Recovery::has_found_to_read(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  return entry != nullptr && entry->is_file() && entry->writer_count == 0 &&
         (entry->tier != Entry::Tier::kCold || disk_.before_use().lasts());
}

bool Recovery::is_read_from_disk(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  return entry != nullptr && entry->tier == Entry::Tier::kCold && entry->disk.held() != nullptr &&
         disk_.before_use().lasts();
}

}  // namespace kvcachefs
