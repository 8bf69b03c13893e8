// LMCache's `local_disk` writes in place under the final name, without temporary file and rename. It keeps an
// index in memory and a budget, and uses O_DIRECT if the size is a multiple of the file system's block.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <list>
#include <unordered_map>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

class LmcacheLocalDisk final : public Client {
 public:
  LmcacheLocalDisk(const ClientOptions& options, bool direct)
      : root_(options.root + "/local_disk"),
        entries_max_(options.budget_bytes / options.entry_bytes),
        direct_(direct) {}

  Outcome start() override {
    if (Outcome outcome = make_directories(root_); !outcome.done()) return outcome;
    struct statvfs space {};
    const long told = result_of(::statvfs(root_.c_str(), &space));
    if (told < 0) return failed("statvfs", root_, told);
    block_bytes_ = space.f_bsize;
    return {};
  }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    if (places_.contains(key)) return {};
    if (Outcome outcome = evict_until_fits(); !outcome.done()) return outcome;
    const std::string path = path_of(key);
    const bool direct = direct_ && bytes.size() % block_bytes_ == 0;
    const int flags = direct ? O_CREAT | O_WRONLY | O_DIRECT : O_CREAT | O_WRONLY | O_TRUNC;
    const long fd = result_of(::open(path.c_str(), flags | O_CLOEXEC, direct ? 0644 : 0666));
    if (fd < 0) return failed("open", path, fd);
    const long written = result_of(::write(static_cast<int>(fd), bytes.data(), bytes.size()));
    const long closed = close_fd(static_cast<int>(fd));
    if (written != static_cast<long>(bytes.size())) return failed("write", path, written);
    if (closed < 0) return failed("close", path, closed);
    order_.push_front(key);
    places_[key] = order_.begin();
    return {};
  }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    found = 0;
    while (found < keys.size() && places_.contains(keys[found])) ++found;
    return {};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const bool direct = direct_ && into.size() % block_bytes_ == 0;
    const long opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0)));
    if (opened == -ENOENT) drop(key);
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    const long got = result_of(::read(fd.get(), into.data(), into.size()));
    if (got != static_cast<long>(into.size())) return failed("read", path, got);
    order_.splice(order_.begin(), order_, places_.at(key));
    return {};
  }

  Sharing sharing() const override { return Sharing::kNone; }

 private:
  std::string path_of(uint64_t key) const {
    return root_ + "/vllm@meta-llama-Llama-3.1-8B@1@0@" + hash_name(key) + "@bfloat16.pt";
  }
  void drop(uint64_t key) {
    order_.erase(places_.at(key));
    places_.erase(key);
  }
  Outcome evict_until_fits() {
    while (order_.size() >= entries_max_) {
      const uint64_t victim = order_.back();
      const std::string path = path_of(victim);
      const long removed = result_of(::unlink(path.c_str()));
      if (removed < 0 && removed != -ENOENT) return failed("unlink", path, removed);
      drop(victim);
    }
    return {};
  }

  const std::string root_;
  const uint64_t entries_max_;
  const bool direct_;
  uint64_t block_bytes_ = 4096;
  std::list<uint64_t> order_;  // most recent first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

}  // namespace

std::unique_ptr<Client> make_lmcache_local_disk(const ClientOptions& options) {
  return std::make_unique<LmcacheLocalDisk>(options, false);
}
std::unique_ptr<Client> make_lmcache_local_disk_direct(const ClientOptions& options) {
  return std::make_unique<LmcacheLocalDisk>(options, true);
}

}  // namespace kvcachefs::clients
