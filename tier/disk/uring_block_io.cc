#include "tier/disk/uring_block_io.h"

#include <liburing.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/fault_point.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "tier/blocks.h"

namespace kvcachefs {
namespace {

// Extents are counted in units of at least 4 KiB, and flash writes 4 KiB without reading first. A file system
// that accepts 512 bytes gains nothing.
constexpr uint32_t kLeastAlignmentBytes = 4096;
// One system call moves less than 2 GiB (MAX_RW_COUNT); the rest of a longer request follows as after a short
// transfer.
constexpr uint64_t kMostBytesAtOnce = uint64_t{1} << 30;
constexpr uint64_t kWakeTag = uint64_t{1} << 63;
constexpr int kRegisteredFile = 0;
constexpr unsigned kMostDepth = 4096;
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24);
// The pause while the kernel has no memory for a request.
constexpr int kPauseMs = 1;

std::string no_uring(int code) {
  if (code == ENOSYS)
    return "io_uring is not to be had: the kernel is without it, or a seccomp filter (of a container) hides "
           "it";
  if (code == EPERM)
    return "io_uring is not permitted: see kernel.io_uring_disabled, or the container's seccomp filter";
  if (code == ENOMEM) return "io_uring has no memory for a ring: see the limit of locked memory (ulimit -l)";
  return "io_uring: " + sys::error_text(code);
}

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (!open_) return;
    // The kernel takes a ring and its files apart only after the call. Because the file is unregistered here,
    // it is closed, and its lock free, as soon as its owner closes it.
    io_uring_unregister_files(&ring_);
    io_uring_queue_exit(&ring_);
  }

  Result<void> open(unsigned entries, int fd) {
    const int rc = io_uring_queue_init(entries, &ring_, 0);
    if (rc < 0) return fail(-rc, no_uring(-rc));
    open_ = true;
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0)
      return fail(ENOSYS, "io_uring of this kernel is too old: Linux 5.11 or newer is needed");
    const int registered = io_uring_register_files(&ring_, &fd, 1);
    if (registered < 0) return fail(-registered, no_uring(-registered));
    return {};
  }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool open_ = false;
};

class UringChannel final : public BlockChannel {
 public:
  UringChannel(unsigned depth, uint32_t alignment_bytes, uint64_t size_bytes)
      : alignment_bytes_(alignment_bytes), size_bytes_(size_bytes), slots_(depth) {
    for (size_t slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
  }

  Result<void> open(int fd) {
    // The ring has one entry more than the depth, because a read of the event is always with the kernel.
    if (auto ok = ring_.open(static_cast<unsigned>(slots_.size()) + 1, fd); !ok) return ok;
    auto event = sys::make_event();
    if (!event) return fail(event.error().code, "no descriptor for an event");
    event_ = std::move(*event);
    listen();
    return {};
  }

  ~UringChannel() override {
    queued_.clear();
    closing_ = true;
    if (!event_) return;
    // The kernel may use the channel's memory until the last completion, including the event's.
    wake();
    std::vector<BlockCompletion> dropped;
    while (busy() > 0 || listening_) {
      collect(dropped);
      prepare();
      if (busy() > 0 || listening_) enter(kLongestWait);
    }
  }

  void submit(std::span<const BlockRequest> requests) override {
    for (const BlockRequest& request : requests) {
      const auto address = reinterpret_cast<uintptr_t>(request.memory.data());
      KVCACHEFS_CHECK(!request.memory.empty());
      KVCACHEFS_CHECK((request.offset | request.memory.size() | address) % alignment_bytes_ == 0);
      const bool read = request.kind == BlockRequest::Kind::kRead;
      const bool within =
          request.offset <= size_bytes_ && request.memory.size() <= size_bytes_ - request.offset;
      if (const int error = injected_error(read ? "disk read" : "disk write"))
        refused_.push_back({request.tag, error});
      else if (within)
        queued_.push_back(request);
      else
        refused_.push_back({request.tag, read ? EIO : ENOSPC});
    }
    prepare();
    enter(std::chrono::milliseconds(0));
  }

  size_t reap(std::vector<BlockCompletion>& out, std::chrono::milliseconds at_most) override {
    const size_t before = out.size();
    const auto deadline = std::chrono::steady_clock::now() + std::min(at_most, kLongestWait);
    out.insert(out.end(), refused_.begin(), refused_.end());
    refused_.clear();
    for (;;) {
      const bool woken = collect(out);
      prepare();
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      const bool enough = woken || out.size() > before || left.count() <= 0;
      enter(enough ? std::chrono::milliseconds(0) : left);
      if (enough) return out.size() - before;
    }
  }

  size_t in_flight() const override { return queued_.size() + refused_.size() + busy(); }
  void wake() override {
    if (!raised_.exchange(true)) sys::raise_event(event_.get());
  }

 private:
  struct Slot {
    BlockRequest request;
    uint64_t done_bytes = 0;
  };

  size_t busy() const { return slots_.size() - free_.size(); }

  io_uring_sqe* next_sqe() {
    io_uring_sqe* const sqe = io_uring_get_sqe(ring_.get());
    KVCACHEFS_CHECK(sqe != nullptr);  // there is one for each slot, and one for the event
    return sqe;
  }

  void listen() {
    io_uring_sqe* const sqe = next_sqe();
    io_uring_prep_read(sqe, event_.get(), &event_count_, sizeof event_count_, 0);
    io_uring_sqe_set_data64(sqe, kWakeTag);
    listening_ = true;
  }

  void prepare_slot(size_t slot) {
    const Slot& from = slots_[slot];
    const BlockRequest& request = from.request;
    std::byte* const memory = request.memory.data() + from.done_bytes;
    const uint64_t left_bytes = request.memory.size() - from.done_bytes;
    const auto count = static_cast<unsigned>(std::min(left_bytes, kMostBytesAtOnce));
    const uint64_t offset = request.offset + from.done_bytes;
    io_uring_sqe* const sqe = next_sqe();
    if (request.kind == BlockRequest::Kind::kRead) {
      io_uring_prep_read(sqe, kRegisteredFile, memory, count, offset);
    } else {
      io_uring_prep_write(sqe, kRegisteredFile, memory, count, offset);
    }
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, slot);
  }

  // prepare() fills the submission queue with requests to try again and with queued requests that have a
  // slot; no system call.
  void prepare() {
    for (const size_t slot : again_) prepare_slot(slot);
    again_.clear();
    while (!free_.empty() && !queued_.empty()) {
      const size_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = {queued_.front(), 0};
      queued_.pop_front();
      prepare_slot(slot);
    }
  }

  // enter() hands prepared requests to the kernel and waits at most `at_most` for a completion. With 0 and
  // nothing prepared it makes no system call.
  void enter(std::chrono::milliseconds at_most) {
    int rc = 0;
    if (at_most.count() <= 0) {
      if (io_uring_sq_ready(ring_.get()) == 0) return;
      rc = io_uring_submit(ring_.get());
    } else {
      __kernel_timespec wait{at_most.count() / 1000, at_most.count() % 1000 * 1'000'000};
      io_uring_cqe* first = nullptr;
      rc = io_uring_submit_and_wait_timeout(ring_.get(), &first, 1, &wait, nullptr);
    }
    if (rc >= 0 || rc == -ETIME || rc == -EINTR) return;
    // Requests that the kernel did not take stay in the submission queue and go with the next call.
    KVCACHEFS_CHECK(rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM);
    if (at_most.count() > 0) sys::wait_readable(ring_.get()->ring_fd, kPauseMs);
  }

  // collect() appends the kernel's completions to `out`, without a system call. True if the event was among
  // them.
  bool collect(std::vector<BlockCompletion>& out) {
    std::array<io_uring_cqe*, 64> batch;
    bool woken = false;
    for (;;) {
      const unsigned count = io_uring_peek_batch_cqe(ring_.get(), batch.data(), batch.size());
      for (unsigned index = 0; index < count; ++index) {
        const io_uring_cqe& cqe = *batch[index];
        if (cqe.user_data == kWakeTag) {
          listening_ = false;
          // The flag is cleared before the caller looks for its reason to wake: a later wake() raises the
          // event again.
          if (cqe.res > 0) woken = raised_.exchange(false) || woken;
        } else {
          complete(cqe.user_data, cqe.res, out);
        }
      }
      io_uring_cq_advance(ring_.get(), count);
      if (count < batch.size()) break;
    }
    if (!listening_ && !closing_) listen();
    return woken;
  }

  void complete(size_t index, int moved, std::vector<BlockCompletion>& out) {
    Slot& slot = slots_[index];
    // ECANCELED: the thread that submitted the request has ended; the disk refused nothing.
    if (moved == -EAGAIN || moved == -EINTR || moved == -ECANCELED) {
      again_.push_back(index);
      return;
    }
    int error = moved < 0 ? -moved : 0;
    if (moved >= 0) {
      // The next try has to begin at a whole block.
      const uint64_t reached = slot.done_bytes + static_cast<uint64_t>(moved);
      const uint64_t whole = reached - reached % alignment_bytes_;
      if (whole < slot.request.memory.size()) {
        if (whole > slot.done_bytes) {
          slot.done_bytes = whole;
          again_.push_back(index);
          return;
        }
        error = EIO;  // no progress: the file ends here, so another process has cut it
      }
    }
    out.push_back({slot.request.tag, error});
    free_.push_back(index);
  }

  const uint32_t alignment_bytes_;
  const uint64_t size_bytes_;
  Ring ring_;
  UniqueFd event_;
  uint64_t event_count_ = 0;
  std::atomic<bool> raised_ = false;  // the event is raised and not yet collected
  bool listening_ = false;
  bool closing_ = false;
  std::vector<Slot> slots_;  // requests that the kernel may have in hand, by user_data
  std::vector<size_t> free_;
  std::vector<size_t> again_;
  std::deque<BlockRequest> queued_;
  std::vector<BlockCompletion> refused_;
};

class UringDevice final : public BlockDevice {
 public:
  UringDevice(UniqueFd fd, std::string path, uint64_t size_bytes, uint32_t alignment_bytes, int node)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        size_bytes_(size_bytes),
        alignment_bytes_(alignment_bytes),
        node_(node) {}

  Result<std::unique_ptr<BlockChannel>> channel(unsigned depth) override {
    auto made =
        std::make_unique<UringChannel>(std::clamp(depth, 1u, kMostDepth), alignment_bytes_, size_bytes_);
    if (auto ok = made->open(fd_.get()); !ok) return fail(ok.error().code, path_ + ": " + ok.error().message);
    return made;
  }
  Result<void> flush() override {
    if (const int error = injected_error("disk flush"))
      return fail(error, path_ + ": flush: " + sys::error_text(error));
    auto ok = sys::sync_data(fd_.get());
    if (!ok) return fail(ok.error().code, path_ + ": flush: " + sys::error_text(ok.error().code));
    return {};
  }
  uint64_t size_bytes() const override { return size_bytes_; }
  uint32_t alignment_bytes() const override { return alignment_bytes_; }
  int node() const override { return node_; }

 private:
  const UniqueFd fd_;
  const std::string path_;
  const uint64_t size_bytes_;
  const uint32_t alignment_bytes_;
  const int node_;
};

}  // namespace

Result<void> try_uring() {
  auto file = sys::make_event();
  return file ? Ring().open(1, file->get()) : pass(file);
}

Result<uint32_t> uring_alignment_bytes(int fd, const std::string& path) {
  const auto status = sys::stat_of(fd);
  if (!status) return fail(status.error().code, path + ": " + sys::error_text(status.error().code));
  uint32_t alignment_bytes = kLeastAlignmentBytes;
  if (S_ISBLK(status->st_mode)) {
    auto sector_bytes = sys::device_sector_bytes(fd);
    if (!sector_bytes) return fail(sector_bytes.error().code, path + ": its sector size is not to be had");
    alignment_bytes = std::max(alignment_bytes, *sector_bytes);
  }
  const auto direct = sys::direct_alignment(fd);
  if (direct) return std::max({alignment_bytes, direct->memory_bytes, direct->offset_bytes});
  if (direct.error().code == EINVAL)
    return fail(EINVAL, path + ": its file system has no direct I/O (O_DIRECT)");
  return alignment_bytes;
}

Result<std::unique_ptr<BlockDevice>> uring_device_on(UniqueFd fd, const std::string& path,
                                                     uint64_t size_bytes) {
  auto status = sys::stat_of(fd.get());
  if (!status) return fail(status.error().code, path + ": " + sys::error_text(status.error().code));
  const bool device = S_ISBLK(status->st_mode);
  if (!device && !S_ISREG(status->st_mode)) return fail(EINVAL, path + ": neither a block device nor a file");
  auto file_bytes = device ? sys::device_size_bytes(fd.get()) : size_of(*status);
  if (!file_bytes) return fail(file_bytes.error().code, path + ": its size is not to be had");
  const auto alignment_bytes = uring_alignment_bytes(fd.get(), path);
  if (!alignment_bytes) return fail(alignment_bytes.error().code, alignment_bytes.error().message);
  size_bytes = std::min(size_bytes, *file_bytes);
  size_bytes -= size_bytes % *alignment_bytes;
  const int node = sys::disk_node(device ? status->st_rdev : status->st_dev);
  auto made = std::make_unique<UringDevice>(std::move(fd), path, size_bytes, *alignment_bytes, node);
  // A kernel without io_uring is reported now and not at the first spill.
  if (auto probe = made->channel(1); !probe) return pass(probe);
  return made;
}

}  // namespace kvcachefs
