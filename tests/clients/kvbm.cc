// Dynamo KVBM's disk tier: each process makes one big file with mkostemp, switches it to O_DIRECT with fcntl,
// preallocates it, and reads and writes it at random with io_uring. Blocks lie in its slots, and an index in
// memory has their places; a block without a slot is a miss. Other entries are stored beside the file, so
// that the pool can evict something while the file is open.
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <unordered_map>
#include <vector>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

class Kvbm final : public Client {
 public:
  // Each process's file takes an eighth of the pool, because it cannot be evicted and other entries need
  // room.
  explicit Kvbm(const ClientOptions& options)
      : root_(options.root),
        path_(options.root + "/dynamo-kvbm-disk-cache-XXXXXX"),
        entry_bytes_(options.entry_bytes),
        slots_(options.budget_bytes / 8 / options.entry_bytes),
        neighbour_(make_aibrix(options)) {}

  ~Kvbm() override {
    if (ring_ready_) ::io_uring_queue_exit(&ring_);
    if (fd_) ::unlink(path_.c_str());
  }

  Outcome start() override {
    const long ready = ::io_uring_queue_init(8, &ring_, 0);
    if (ready < 0) return failed("io_uring_queue_init", root_, ready);
    ring_ready_ = true;
    const long fd = result_of(::mkostemp(path_.data(), O_CLOEXEC));
    if (fd < 0) return failed("mkostemp", path_, fd);
    fd_ = UniqueFd(static_cast<int>(fd));
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    const long direct = result_of(::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT));
    if (direct < 0) return failed("fcntl F_SETFL O_DIRECT", path_, direct);
    const long allocated =
        result_of(::fallocate(fd_.get(), 0, 0, static_cast<off_t>(slots_.size() * entry_bytes_)));
    return allocated < 0 ? failed("fallocate", path_, allocated) : Outcome{};
  }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const size_t slot = (key * 7) % slots_.size();
    const long written = transfer(true, const_cast<std::byte*>(bytes.data()), bytes.size(), slot);
    if (written != static_cast<long>(bytes.size())) return failed("io_uring write", path_, written);
    if (slots_[slot].used) places_.erase(slots_[slot].key);
    slots_[slot] = {true, key};
    places_[key] = slot;
    return neighbour_->store(key, bytes);
  }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    found = 0;
    while (found < keys.size() && places_.contains(keys[found])) ++found;
    return {};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const auto place = places_.find(key);
    if (place == places_.end()) return {Outcome::Kind::kMiss};
    const long got = transfer(false, into.data(), into.size(), place->second);
    return got == static_cast<long>(into.size()) ? Outcome{} : failed("io_uring read", path_, got);
  }

  Sharing sharing() const override { return Sharing::kNone; }

 private:
  struct Slot {
    bool used = false;
    uint64_t key = 0;
  };

  long transfer(bool write, std::byte* buffer, size_t size_bytes, size_t slot) {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    const auto length = static_cast<unsigned>(size_bytes);
    if (write) {
      ::io_uring_prep_write(entry, fd_.get(), buffer, length, slot * entry_bytes_);
    } else {
      ::io_uring_prep_read(entry, fd_.get(), buffer, length, slot * entry_bytes_);
    }
    const long submitted = ::io_uring_submit_and_wait(&ring_, 1);
    if (submitted != 1) return submitted;
    io_uring_cqe* completion = nullptr;
    if (const long waited = ::io_uring_wait_cqe(&ring_, &completion); waited < 0) return waited;
    const long result = completion->res;
    ::io_uring_cqe_seen(&ring_, completion);
    return result;
  }

  const std::string root_;
  std::string path_;
  const uint64_t entry_bytes_;
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, size_t> places_;
  std::unique_ptr<Client> neighbour_;
  UniqueFd fd_;
  io_uring ring_{};
  bool ring_ready_ = false;
};

}  // namespace

std::unique_ptr<Client> make_kvbm(const ClientOptions& options) {
  return std::make_unique<Kvbm>(options);
}

}  // namespace kvcachefs::clients
