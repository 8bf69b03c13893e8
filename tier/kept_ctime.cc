#include "tier/kept_ctime.h"

#include <cerrno>

#include "base/fault_point.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// The value of the xattr. Seconds and nanoseconds are kept apart because a user may have set any mtime.
struct Record {
  int64_t modified_s;
  int64_t modified_ns;
  uint64_t ctime_ns;
  uint64_t begun;  // a change began and has not ended
};

uint64_t in_ns(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

timespec from_ns(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

KeptCtime kept_ctime(const timespec& modified, const timespec& changed) {
  return {.mtime_ns = in_ns(modified), .ctime_ns = in_ns(changed)};
}

bool is_kept(const KeptCtime& kept, const struct stat& attributes) {
  return kept.ctime_ns != 0 && in_ns(attributes.st_mtim) == kept.mtime_ns;
}

void write_down(int fd, const timespec& modified, const KeptCtime& kept, bool begun) {
  const Record record{.modified_s = modified.tv_sec,
                      .modified_ns = modified.tv_nsec,
                      .ctime_ns = kept.ctime_ns,
                      .begun = begun};
  (void)sys::set_xattr(fd, kTimesXattr, {reinterpret_cast<const char*>(&record), sizeof record}, 0);
}

}  // namespace

void show_ctime(const KeptCtime& kept, struct stat& attributes) {
  if (is_kept(kept, attributes)) attributes.st_ctim = from_ns(kept.ctime_ns);
}

void keep_ctime(KeptCtime& kept, int fd, bool survives) {
  const auto now = sys::stat_of(fd);
  if (!now || is_kept(kept, *now)) return;
  kept = kept_ctime(now->st_mtim, now->st_ctim);
  if (survives) write_down(fd, now->st_mtim, kept, false);
}

KeptCtime restore_ctime(int fd, const timespec& modified, const timespec& changed, bool survives) {
  if (changed.tv_sec == 0) return {};  // not known
  const KeptCtime kept = kept_ctime(modified, changed);
  if (survives) write_down(fd, modified, kept, false);
  return kept;
}

void forget_ctime(KeptCtime& kept, int fd, bool survives) {
  if (kept.ctime_ns == 0) return;
  kept = {};
  if (survives) (void)sys::remove_xattr(fd, kTimesXattr);
}

void begin_unseen(KeptCtime& kept, int fd, const struct stat& shown, bool survives) {
  kept = kept_ctime(shown.st_mtim, shown.st_ctim);
  if (survives) write_down(fd, shown.st_mtim, kept, true);
}

void end_unseen(KeptCtime& kept, int fd, const timespec& modified, bool survives) {
  fault_point("times to be put back");
  (void)sys::change_times(fd, {timespec{0, UTIME_OMIT}, modified});
  if (survives) write_down(fd, modified, kept, false);
}

UnseenChange::UnseenChange(KeptCtime& kept, int fd, bool survives)
    : kept_(kept), fd_(fd), survives_(survives) {
  const auto now = sys::stat_of(fd);
  if (!now) return;
  before_ = *now;
  show_ctime(kept, before_);
  begin_unseen(kept, fd, before_, survives);
  begun_ = true;
}

UnseenChange::~UnseenChange() {
  if (!begun_) return;
  const auto after = sys::stat_of(fd_);
  if (after && after->st_size == before_.st_size)
    end_unseen(kept_, fd_, before_.st_mtim, survives_);
  else
    forget_ctime(kept_, fd_, survives_);
}

KeptCtime adopt_ctime(int fd, struct stat& attributes, bool written) {
  Record record{};
  const auto size = sys::get_xattr(fd, kTimesXattr, {reinterpret_cast<char*>(&record), sizeof record});
  if (!size && size.error().code == ENODATA) return {};
  const timespec modified{static_cast<time_t>(record.modified_s), static_cast<long>(record.modified_ns)};
  KeptCtime kept = kept_ctime(modified, from_ns(record.ctime_ns));
  if (size && *size == sizeof record) {
    if (record.begun != 0 && !written && !is_kept(kept, attributes)) {
      if (sys::change_times(fd, {timespec{0, UTIME_OMIT}, modified})) attributes.st_mtim = modified;
    }
    if (is_kept(kept, attributes)) {
      if (record.begun != 0 && !written) write_down(fd, modified, kept, false);
      show_ctime(kept, attributes);
      return kept;
    }
  }
  // A write came after the record. The record would count as true again if a user set its mtime, and removing
  // the xattr would move the ctime; so it is replaced by the present times.
  kept = kept_ctime(attributes.st_mtim, attributes.st_ctim);
  if (!written) write_down(fd, attributes.st_mtim, kept, false);
  return kept;
}

}  // namespace kvcachefs
