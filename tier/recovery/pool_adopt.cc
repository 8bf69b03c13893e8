// A pool taken over from a process that died. Its files are where they were. What that process knew of them
// besides is found out again, by a walk of the tree and from what the process wrote down
// (tier/survivors/survivors.h).
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
#include "base/progress.h"
#include "base/sys_disk.h"
#include "tier/catalog/content_layout.h"
#include "tier/catalog/copy_mark.h"
#include "tier/children.h"
#include "tier/pool/counted_inode.h"
#include "tier/pool/recovery.h"

namespace kvcachefs {
namespace {

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

// 0 for a time in the future.
uint64_t age_ms(const timespec& time) {
  return static_cast<uint64_t>(std::max<int64_t>(real_ns() - in_ns(time), 0)) / 1'000'000;
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

  // What could not be looked at would count as gone.
  Result<void> run() {
    survivors_.handles().for_each([this](const OpenHandle& handle) {
      if (handle.inode.pool != number_) return;
      Entries::Found& its = opens_[handle.inode.ino];
      ++its.open_count;
      if (handle.writer) ++its.writer_count;
      if (handle.from_disk) ++its.direct_count;
    });
    survivors_.backing_ids().for_each([this](const HeldBacking& backing, bool) {
      if (backing.inode.pool == number_) backings_[backing.inode.ino] = backing.id;
    });
    adopt_nameless();
    fault_point("adopted nameless");
    if (!capacity_.closed()) adopt_other(root_ino(), 0);
    adopt_tree();
    fault_point("adopted the tree");
    if (!whole_) return whole_;
    publish();
    // The remaining backing ids are of files that are gone: a client that has the file open goes on without
    // it.
    for (const auto& [ino, backing] : backings_) surroundings_.backing_store->give_back(backing);
    return {};
  }

  std::vector<uint64_t> nameless_directories;  // and nameless links and other inodes without content

 private:
  struct Closed {
    int64_t used_ns;
    uint64_t ino;
  };

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
      if (is_file && !opens_.contains(kept.inode.ino)) continue;
      const sys::Handle handle{kept.inode.ino, kept.generation};
      if (is_file) {
        if (const auto fd = arena_.open(handle, kReadForFacts))
          adopt_file(handle, *attributes, fd->get(), true);
        else
          note_failure(fd.error());
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
    auto whole = walk_tree(arena_, [this](int directory, uint64_t, const Child& child) {
      if (child.is_regular)
        adopt_named(child, directory);
      else if (const auto handle = sys::handle_at(directory, child.name.c_str())) {
        adopt_other(handle->ino, handle->generation);
        count_other(directory, child.name.c_str());
        parts_.tree.empty_directories()->rests({.handle = *handle, .age_unknown = true}, 0);
      }
    });
    if (!whole) note_failure(whole.error());
  }

  void note_failure(const Error& error) {
    if (whole_) whole_ = fail(EIO, "not all of its files can be looked at: " + sys::error_text(error.code));
  }

  void adopt_named(const Child& child, int directory) {
    if (const LockedEntry known{entries_.shard(child.ino), child.ino}) return;  // by another name
    const int refused = injected_error("look at a file");
    const auto fd = refused != 0 ? fail(refused) : sys::open_at(directory, child.name.c_str(), kReadForFacts);
    if (!fd) return note_failure(fd.error());
    const auto handle = sys::handle_of(fd->get());
    const auto attributes = sys::stat_of(fd->get());
    if (!handle || !attributes) return note_failure(handle ? attributes.error() : handle.error());
    adopt_file(*handle, *attributes, fd->get(), false);
  }

  void adopt_file(sys::Handle handle, struct stat attributes, int fd, bool nameless) {
    const auto found = opens_.find(handle.ino);
    Entries::Found facts = found == opens_.end() ? Entries::Found{} : found->second;
    const uint64_t size = size_of(attributes);
    const uint64_t allocated = allocated_bytes_of(attributes);
    EntryTable::Shard& shard = entries_.shard(handle.ino);
    MutexLock lock(shard.mutex);
    Entry& entry = shard.find_or_make(handle.ino, handle.generation);
    entry.kernel.may_be_known = true;
    entry.kept = adopt_ctime(fd, attributes, facts.writer_count > 0);
    const auto mark = copy_mark_of(fd);
    if (mark && mark->error != 0) note_failure({mark->error, {}});
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
    facts.stored_ms = now_ms - std::min(now_ms, age_ms(attributes.st_mtim));
    const uint64_t whole = rounded_up(size);
    if (surroundings_.topology->node_count() > 1)
      entry.memory.node = static_cast<int8_t>(surroundings_.topology->node_of_file(fd));
    if (has_other_xattrs(fd)) {
      entry.policy.priority = number_in(xattr_of(fd, "user.kv.priority"));
      facts.pinned = !nameless && xattr_of(fd, kPinnedXattr) == "1";
    }
    facts.charged_bytes = cold ? whole : allocated;
    facts.whole_bytes = whole;
    facts.named = !nameless;
    entries_.found(entry, facts);
    count_inode(entries_, &entry, fd, attributes);
    if (const auto backing = backings_.extract(handle.ino)) entry.kernel.backing = backing.mapped();
    if (entry.kernel.backing < 0 && facts.open_count > facts.direct_count)
      (void)parts_.open_files.back(entry);
    if (facts.writer_count > 0) adopt_writer(entry, allocated);
    // Blocks beyond the end were reserved for a writer; nothing tells how far.
    if (allocated > whole && !cold) {
      entry.memory.reserved_end = size + allocated;
      if (facts.writer_count == 0)
        if (auto file = arena_.open(handle, O_RDWR | O_NONBLOCK)) {
          (void)parts_.reservations.trim(entry, file->get());
          if (auto now = sys::stat_of(file->get()))
            entries_.contents().charged(entry, allocated_bytes_of(*now));
        }
    }
    if (nameless) return;
    if (size > 0 && facts.writer_count == 0 && (cold ? !has_holes(mark->content.extents) : allocated >= size))
      capacity_.stored(size);
    if (facts.writer_count == 0)
      closed_.push_back({std::max(in_ns(attributes.st_atim), in_ns(attributes.st_mtim)), handle.ino});
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
    Entry& entry = shard.find_or_make(ino, generation);
    entry.kernel.lookup_count = 1;
    entry.kernel.lookups_unknown = true;
    entry.kernel.missed_in = true;  // unknown, so assumed
    entries_.found(entry, {.named = named, .stage = Entry::Stage::kOther});
  }

  // Publishes every closed entry as if it were stored when it was last used. An entry that its client has not
  // renamed yet is among the last, and so leaves late, too.
  void publish() {
    std::ranges::sort(closed_, {}, &Closed::used_ns);
    for (const Closed& closed : closed_) {
      count_step();
      const LockedEntry entry(entries_.shard(closed.ino), closed.ino);
      entries_.found_stored(*entry);
    }
  }

  const Parts& parts_;
  Survivors& survivors_;
  std::unordered_map<uint64_t, Entries::Found> opens_;  // what is known of them at first: the counts
  std::unordered_map<uint64_t, int32_t> backings_;
  std::vector<Closed> closed_;
  Result<void> whole_;
};

Result<std::vector<uint64_t>> Recovery::adopt() {
  Adopter adopter(*this);
  if (auto whole = adopter.run(); !whole) return pass(whole);
  return std::move(adopter.nameless_directories);
}

}  // namespace kvcachefs
