#include "tier/disk/spill_target.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <span>
#include <thread>
#include <utility>

#include "base/mapping.h"
#include "base/mountinfo.h"
#include "base/size.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "tier/blocks.h"
#include "tier/disk/foreign_content.h"
#include "tier/disk/uring_block_io.h"

namespace kvcachefs {
namespace {

constexpr mode_t kFileMode = 0600;  // the file has the entries' bytes, which not every user may read
constexpr std::chrono::milliseconds kBetweenTries{10};

class Opening {
 public:
  explicit Opening(const SpillTargetOptions& options) : options_(options), path_(options.path) {}
  Result<SpillTarget> run();
  Result<void> probe();
  Result<void> look();

 private:
  template <class... Values>
  std::unexpected<Error> refuse(int code, fmt::format_string<Values...> format, Values&&... values) const {
    return fail(code, path_ + " " + fmt::format(format, std::forward<Values>(values)...));
  }
  std::unexpected<Error> refuse_call(const Error& error, const char* what) const {
    return refuse(error.code, "{}: {}", what, sys::error_text(error.code));
  }

  // patiently() calls again for as long as the answer is EBUSY and the patience lasts.
  template <class Call>
  Result<void> patiently(Call call) {
    for (;;) {
      auto ok = call();
      if (ok || ok.error().code != EBUSY || std::chrono::steady_clock::now() >= deadline_) return ok;
      std::this_thread::sleep_for(kBetweenTries);
    }
  }
  Result<void> open();
  Result<void> create();
  Result<void> open_existing(const struct stat& status);
  Result<void> check_file_system(int fd) const;
  Result<void> lock();
  Result<void> check_alignment() const;
  Result<void> measure();
  Result<void> read_first_unit();
  Result<bool> look_for_ours();
  Result<bool> is_ours();
  Result<void> check_foreign() const;
  Result<void> check_whole() const;
  Result<void> resize();
  Result<void> make();
  Result<void> write_first_unit(const Superblock& superblock);
  Result<SpillTarget> finish();

  std::string magic_link() const { return fmt::format("/proc/self/fd/{}", fd_.get()); }
  std::span<std::byte> first_unit() const { return memory_.bytes(); }

  const SpillTargetOptions& options_;
  const std::string& path_;
  const std::chrono::steady_clock::time_point deadline_ =
      std::chrono::steady_clock::now() + options_.patience;
  UniqueFd fd_;
  bool device_ = false;
  bool created_ = false;
  uint64_t present_bytes_ = 0;  // the size before this opening
  uint64_t wanted_bytes_ = 0;   // whole units
  Mapping memory_;
  std::optional<Superblock> found_;
  bool made_ = false;
};

Result<SpillTarget> Opening::run() {
  const uint64_t unit_bytes = options_.unit_bytes;
  if (!std::has_single_bit(unit_bytes) || unit_bytes < kLeastUnitBytes || unit_bytes > kMostUnitBytes)
    return refuse(EINVAL, "cannot have units of {} bytes", unit_bytes);
  Result<void> ok = patiently([this] { return open(); });
  if (!ok) return pass(ok);
  ok = patiently([this] { return lock(); });
  if (ok) ok = check_alignment();
  auto ours = ok ? look_for_ours() : pass(ok);
  ok = ours ? resize() : pass(ours);
  if (ok && !*ours) ok = make();
  auto target = ok ? finish() : Result<SpillTarget>(pass(ok));
  // A file made by an attempt that failed is removed.
  if (!target && created_) static_cast<void>(sys::unlink_at(AT_FDCWD, path_.c_str(), 0));
  return target;
}

Result<void> Opening::probe() {
  const auto found = sys::open_at(AT_FDCWD, path_.c_str(), O_PATH | O_CLOEXEC);
  if (!found) return refuse_call(found.error(), "cannot be opened");
  Result<void> ok = open();
  if (ok) ok = lock();
  auto ours = ok ? look_for_ours() : pass(ok);
  if (!ours) return pass(ours);
  return *ours ? Result<void>() : refuse(ENODATA, "has no superblock");
}

// False: the target may be given a superblock.
Result<bool> Opening::look_for_ours() {
  Result<void> ok = measure();
  if (ok) ok = read_first_unit();
  auto ours = ok ? is_ours() : pass(ok);
  if (ours && *ours)
    if (auto whole = check_whole(); !whole) return pass(whole);
  return ours;
}

Result<void> Opening::look() {
  auto fd = sys::open_at(AT_FDCWD, path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (!fd) return refuse_call(fd.error(), "cannot be opened");
  fd_ = std::move(*fd);
  const auto status = sys::stat_of(fd_.get());
  if (!status) return refuse_call(status.error(), "cannot be looked at");
  device_ = S_ISBLK(status->st_mode);
  Result<void> ok = measure();
  if (ok) ok = read_first_unit();
  if (!ok) return ok;
  Superblock superblock;
  uint32_t version = 0;
  if (read_superblock(first_unit(), superblock, version) != SuperblockFound::kOurs)
    return refuse(EUCLEAN, "has no superblock that can be read (version {}, this kvcachefs knows {})",
                  version, kSuperblockVersion);
  found_ = superblock;
  return check_whole();
}

Result<void> Opening::open() {
  const auto found = sys::open_at(AT_FDCWD, path_.c_str(), O_PATH | O_CLOEXEC);
  if (!found && found.error().code == ENOENT) return create();
  if (!found) return refuse_call(found.error(), "cannot be opened");
  const auto status = sys::stat_of(found->get());
  if (!status) return refuse_call(status.error(), "cannot be opened");
  if (S_ISREG(status->st_mode))
    if (auto ok = check_file_system(found->get()); !ok) return ok;
  return open_existing(*status);
}

Result<void> Opening::create() {
  std::string directory = std::filesystem::path(path_).parent_path();
  if (directory.empty()) directory = ".";
  const auto parent = sys::open_at(AT_FDCWD, directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (!parent && parent.error().code == ENOENT)
    return refuse(ENOENT, "cannot be made: its directory {} does not exist", directory);
  if (!parent) return refuse_call(parent.error(), "cannot be made");
  if (auto ok = check_file_system(parent->get()); !ok) return ok;
  if (options_.uuid && !options_.force)
    return refuse(ENODATA, "does not exist; the pool's catalog expects it to carry {}",
                  to_string(*options_.uuid));
  if (options_.size_bytes == 0) return refuse(EINVAL, "does not exist: spill_size says how large to make it");
  // The file is made without O_DIRECT, because an open that creates a file fails where O_DIRECT is not
  // supported and yet leaves the file.
  auto fd = sys::open_at(AT_FDCWD, path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode);
  if (!fd) return refuse_call(fd.error(), "cannot be made");
  created_ = true;
  const auto status = sys::stat_of(fd->get());
  auto ok = status ? open_existing(*status) : refuse_call(status.error(), "cannot be made");
  if (!ok) static_cast<void>(sys::unlink_at(AT_FDCWD, path_.c_str(), 0));
  return ok;
}

Result<void> Opening::open_existing(const struct stat& status) {
  device_ = S_ISBLK(status.st_mode);
  if (!device_ && !S_ISREG(status.st_mode)) return refuse(EINVAL, "is neither a block device nor a file");
  const int flags = O_RDWR | O_DIRECT | O_CLOEXEC | (device_ ? O_EXCL : 0);
  auto fd = sys::open_at(AT_FDCWD, path_.c_str(), flags);
  if (fd) {
    fd_ = std::move(*fd);
    return {};
  }
  if (fd.error().code == EINVAL)
    return refuse(EINVAL, "lies on a file system without direct I/O (O_DIRECT), which the spill tier needs");
  if (fd.error().code == EBUSY) return refuse(EBUSY, "is in use: mounted, or opened by another program");
  return refuse_call(fd.error(), "cannot be opened");
}

Result<void> Opening::check_file_system(int fd) const {
  const auto name = memory_file_system(fd);
  if (!name) return refuse_call(name.error(), "cannot be looked at");
  if (name->empty()) return {};
  return refuse(EINVAL, "lies on {}, which is memory itself: the spill tier needs a disk", *name);
}

Result<void> Opening::lock() {
  const auto locked = sys::lock_whole(fd_.get());
  if (locked) return {};
  if (locked.error().code == EWOULDBLOCK)
    return refuse(EBUSY, "is in use by another kvcachefsd, or another pool");
  return refuse_call(locked.error(), "cannot be locked");
}

// Because the disk reads and writes mapped pages of files, its blocks must not be larger than a page.
Result<void> Opening::check_alignment() const {
  auto alignment_bytes = uring_alignment_bytes(fd_.get(), path_);
  if (!alignment_bytes) return pass(alignment_bytes);
  if (*alignment_bytes <= kBlockBytes) return {};
  return refuse(EINVAL, "moves blocks of {} only; the spill tier needs one that moves {}",
                format_size_exact(*alignment_bytes), format_size_exact(kBlockBytes));
}

Result<void> Opening::measure() {
  const auto status = sys::stat_of(fd_.get());
  if (!status) return refuse_call(status.error(), "cannot be measured");
  const auto bytes = device_ ? sys::device_size_bytes(fd_.get()) : size_of(*status);
  if (!bytes) return refuse_call(bytes.error(), "cannot be measured");
  present_bytes_ = *bytes;
  wanted_bytes_ = options_.size_bytes != 0 ? options_.size_bytes : present_bytes_;
  wanted_bytes_ -= wanted_bytes_ % options_.unit_bytes;
  if (device_ && wanted_bytes_ > present_bytes_)
    return refuse(EINVAL, "has {}, spill_size asks for {}", format_size(present_bytes_),
                  format_size(wanted_bytes_));
  if (wanted_bytes_ < 2 * options_.unit_bytes)
    return refuse(EINVAL, "is too small: {} are less than two units of {}", format_size(wanted_bytes_),
                  format_size(options_.unit_bytes));
  return {};
}

Result<void> Opening::read_first_unit() {
  auto memory = Mapping::of_memory(options_.unit_bytes);
  if (!memory) return refuse(ENOMEM, "cannot be read: no memory");
  memory_ = std::move(*memory);
  const std::span<char> bytes(reinterpret_cast<char*>(first_unit().data()), options_.unit_bytes);
  // A file shorter than a unit is read up to its end; the rest of the unit is zeros.
  if (const auto read = sys::read_at(fd_.get(), bytes, 0); !read)
    return refuse_call(read.error(), "cannot be read");
  return {};
}

Result<bool> Opening::is_ours() {
  Superblock superblock;
  uint32_t version = 0;
  const SuperblockFound found = read_superblock(first_unit(), superblock, version);
  if (options_.force && found != SuperblockFound::kOurs) return false;
  switch (found) {
    case SuperblockFound::kNewer:
      return refuse(ENOTSUP, "has a superblock of version {}; this kvcachefs knows {} and older ones",
                    version, kSuperblockVersion);
    case SuperblockFound::kDamaged:
    case SuperblockFound::kNone: {
      if (auto ok = check_foreign(); !ok) return pass(ok);
      if (found == SuperblockFound::kDamaged)
        return refuse(EUCLEAN,
                      "has a damaged superblock; spill_force=on makes a new one, and what it held is lost");
      if (options_.uuid)
        return refuse(ENODATA, "has no superblock; the pool's catalog expects {}", to_string(*options_.uuid));
      return false;
    }
    case SuperblockFound::kOurs:
      break;
  }
  const bool expected = (options_.uuid ? options_.uuid : options_.new_uuid) == superblock.uuid;
  const bool fits = superblock.unit_bytes == options_.unit_bytes;
  if (options_.force && !(expected && fits)) return false;
  // The disk is another pool's, or this pool's while its catalog is elsewhere: its content is in use.
  if (!options_.uuid && !expected)
    return refuse(
        ESTALE,
        "carries {}, which the pool's catalog, a new one, does not know; spill_force=on begins anew, "
        "and what it held is lost",
        to_string(superblock.uuid));
  if (!expected)
    return refuse(ESTALE, "carries {}, the pool's catalog expects {}", to_string(superblock.uuid),
                  to_string(*options_.uuid));
  if (!fits)
    return refuse(EINVAL, "was made with spill_unit={}, not {}", format_size_exact(superblock.unit_bytes),
                  format_size_exact(options_.unit_bytes));
  found_ = superblock;
  return true;
}

Result<void> Opening::check_foreign() const {
  if (created_) return {};
  auto content = foreign_content(magic_link());
  if (!content) return refuse(content.error().code, "{}", content.error().message);
  // A file that an administrator allocated for kvcachefs may hold zeros only.
  if (content->empty() && !device_ &&
      std::ranges::any_of(first_unit(), [](std::byte byte) { return byte != std::byte{0}; }) &&
      !std::ranges::equal(std::as_bytes(std::span(kSuperblockMagic)),
                          first_unit().first(kSuperblockMagic.size())))
    *content = "data of something else";
  if (content->empty()) return {};
  return refuse(EEXIST, "carries {}, which kvcachefs did not make; spill_force=on overwrites it", *content);
}

Result<void> Opening::check_whole() const {
  const uint64_t made_bytes = found_ ? found_->size_units * found_->unit_bytes : 0;
  if (!options_.whole || present_bytes_ >= made_bytes) return {};
  return refuse(EIO, "has {}, and was made with {}", format_size(present_bytes_), format_size(made_bytes));
}

// The file is always fully allocated, because a file with holes could run out of space later.
Result<void> Opening::resize() {
  if (device_) return {};
  const auto status = sys::stat_of(fd_.get());
  const auto space = sys::statfs_of(fd_.get());
  if (!status || !space) return refuse(EIO, "cannot be measured");
  const uint64_t allocated_bytes = allocated_bytes_of(*status);
  const uint64_t free_bytes = static_cast<uint64_t>(space->f_bfree) * static_cast<uint64_t>(space->f_frsize);
  const auto no_room = [&] {
    return refuse(ENOSPC, "cannot be made {} large: it has {}, its file system has {} free",
                  format_size(wanted_bytes_), format_size(allocated_bytes), format_size(free_bytes));
  };
  if (wanted_bytes_ > allocated_bytes && wanted_bytes_ - allocated_bytes > free_bytes) return no_room();
  if (present_bytes_ > wanted_bytes_) {
    if (auto ok = sys::truncate(fd_.get(), wanted_bytes_); !ok)
      return refuse_call(ok.error(), "cannot be cut");
  }
  const auto allocated = sys::allocate(fd_.get(), 0, 0, wanted_bytes_);
  if (allocated) return {};
  if (present_bytes_ < wanted_bytes_) static_cast<void>(sys::truncate(fd_.get(), present_bytes_));
  if (allocated.error().code == ENOSPC) return no_room();
  return refuse_call(allocated.error(), "cannot be allocated (fallocate)");
}

Result<void> Opening::make() {
  if (options_.force && !created_) {
    if (auto ok = wipe_foreign_content(magic_link()); !ok)
      return refuse(ok.error().code, "{}", ok.error().message);
  }
  const auto uuid = options_.new_uuid ? Result<Uuid>(*options_.new_uuid) : sys::random_uuid();
  if (!uuid) return refuse_call(uuid.error(), "gets no UUID");
  made_ = true;
  return write_first_unit({options_.unit_bytes, wanted_bytes_ / options_.unit_bytes, *uuid});
}

Result<void> Opening::write_first_unit(const Superblock& superblock) {
  write_superblock(superblock, first_unit());
  const std::span<const char> bytes(reinterpret_cast<const char*>(first_unit().data()), options_.unit_bytes);
  const auto written = sys::write_at(fd_.get(), bytes, 0);
  if (!written) return refuse_call(written.error(), "cannot be written");
  if (*written != bytes.size()) return refuse(EIO, "cannot be written");
  if (auto ok = sys::sync_data(fd_.get()); !ok) return refuse_call(ok.error(), "cannot be flushed");
  found_ = superblock;
  return {};
}

Result<SpillTarget> Opening::finish() {
  const uint64_t size_units = wanted_bytes_ / options_.unit_bytes;
  if (found_->size_units != size_units) {
    if (auto ok = write_first_unit({found_->unit_bytes, size_units, found_->uuid}); !ok) return pass(ok);
  }
  auto device = uring_device_on(std::move(fd_), path_, wanted_bytes_);
  if (!device) return pass(device);
  return SpillTarget{std::move(*device), found_->uuid, options_.unit_bytes, size_units, made_};
}

}  // namespace

Result<std::string_view> memory_file_system(int fd) {
  const auto status = sys::stat_of(fd);
  if (!status) return fail(status.error().code);
  auto mounts = read_mounts();
  if (!mounts) return pass(mounts);
  const std::string device = fmt::format("{}:{}", major(status->st_dev), minor(status->st_dev));
  for (const MountPoint& mount : *mounts)
    if (mount.device == device && mount.type == kFileSystemType) return kFileSystemType;
  const auto found = sys::statfs_of(fd);
  if (!found) return fail(found.error().code);
  if (found->f_type == TMPFS_MAGIC) return "tmpfs";
  if (found->f_type == RAMFS_MAGIC) return "ramfs";
  if (found->f_type == HUGETLBFS_MAGIC) return "hugetlbfs";
  return std::string_view();
}

Result<SpillTarget> open_spill_target(const SpillTargetOptions& options) {
  return Opening(options).run();
}

Result<void> probe_spill_target(const SpillTargetOptions& options) {
  return Opening(options).probe();
}

Result<void> look_at_spill_target(const SpillTargetOptions& options) {
  return Opening(options).look();
}

}  // namespace kvcachefs
