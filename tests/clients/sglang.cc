// SGLang's `file` storage: a flat directory; `tofile` (fopen "wb", fwrite) into
// <final>.tmp.<pid>.<tid>.<uuid>, replace; an existing file is touched. v1 asks for each key up to the first
// miss; v2 lists the whole directory for each call. v1 runs with the optional evictor.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <list>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

constexpr std::string_view kSuffix = ".bin";

// The optional evictor caps the bytes of the directory by removing the files used longest ago. It knows only
// the files found at its start and those of its own process, as the engine does. One thread.
class Evictor {
 public:
  Evictor(const std::string& root, uint64_t cap_bytes) : root_(root), cap_bytes_(cap_bytes) {}

  // The cap is at most the size of the file system; the files found count, the oldest first.
  Outcome start() {
    struct statvfs space {};
    const long told = result_of(::statvfs(root_.c_str(), &space));
    if (told < 0) return failed("statvfs", root_, told);
    if (space.f_bsize != 4096) return failed("statvfs f_bsize", root_, static_cast<long>(space.f_bsize));
    cap_bytes_ = std::min(cap_bytes_, space.f_blocks * space.f_frsize);
    if (Outcome outcome = scan(); !outcome.done()) return outcome;
    return held_bytes_ > cap_bytes_ ? evict(0) : Outcome{};
  }

  Outcome reserve(const std::string& name, uint64_t bytes) {
    if (held_bytes_ + bytes > cap_bytes_) {
      if (Outcome outcome = evict(bytes); !outcome.done()) return outcome;
    }
    add(name, bytes);
    return {};
  }

  // The evictor also takes up a file that another process stored.
  void touch(const std::string& name) {
    if (const auto place = places_.find(name); place != places_.end()) {
      order_.splice(order_.end(), order_, place->second);
      return;
    }
    struct stat status {};
    if (::stat((root_ + "/" + name).c_str(), &status) == 0) add(name, static_cast<uint64_t>(status.st_size));
  }

  size_t entries() const { return order_.size(); }

 private:
  struct File {
    std::string name;
    uint64_t bytes = 0;
  };

  Outcome scan() {
    std::vector<std::string> names;
    if (Outcome outcome = list_names(root_, names); !outcome.done()) return outcome;
    std::vector<std::tuple<int64_t, std::string, uint64_t>> files;
    for (const std::string& name : names) {
      if (!name.ends_with(kSuffix)) continue;
      struct stat status {};
      const long found = result_of(::stat((root_ + "/" + name).c_str(), &status));
      if (found == -ENOENT) continue;
      if (found < 0) return failed("stat", name, found);
      files.emplace_back(status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec, name,
                         status.st_size);
    }
    std::ranges::sort(files);
    for (const auto& [modified_ns, name, bytes] : files) add(name, bytes);
    return {};
  }

  Outcome evict(uint64_t wanted_bytes) {
    while (!order_.empty() && held_bytes_ + wanted_bytes > cap_bytes_ / 10 * 9) {
      const std::string path = root_ + "/" + order_.front().name;
      const long removed = result_of(::unlink(path.c_str()));
      if (removed < 0 && removed != -ENOENT) return failed("unlink", path, removed);
      const std::string name = order_.front().name;
      forget(name);
    }
    return {};
  }

  // A name that was removed and stored again meanwhile may be listed twice: it counts as one entry.
  void add(const std::string& name, uint64_t bytes) {
    forget(name);
    order_.push_back({name, bytes});
    places_[name] = std::prev(order_.end());
    held_bytes_ += bytes;
  }
  void forget(const std::string& name) {
    const auto place = places_.find(name);
    if (place == places_.end()) return;
    held_bytes_ -= place->second->bytes;
    order_.erase(place->second);
    places_.erase(place);
  }

  const std::string root_;
  uint64_t cap_bytes_;
  uint64_t held_bytes_ = 0;
  std::list<File> order_;  // the file used longest ago first
  std::unordered_map<std::string, std::list<File>::iterator> places_;
};

class Sglang : public Client {
 public:
  Sglang(const ClientOptions& options, bool evicts)
      : root_(options.root + "/hicache"), budget_bytes_(options.budget_bytes), evicts_(evicts) {}

  Outcome start() override {
    if (Outcome outcome = make_directories(root_); !outcome.done()) return outcome;
    if (!evicts_) return {};
    evictor_.emplace(root_, budget_bytes_);
    return evictor_->start();
  }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = root_ + "/" + name_of(key);
    const long found = exists(path);
    if (found < 0) return failed("stat", path, found);
    if (found == 1) return touch(key);
    if (evictor_) {
      if (Outcome outcome = evictor_->reserve(name_of(key), bytes.size()); !outcome.done()) return outcome;
    }
    const std::string temporary = path + ".tmp." + std::to_string(::getpid()) + "." +
                                  std::to_string(::gettid()) + "." + std::to_string(random_number());
    std::FILE* const file = std::fopen(temporary.c_str(), "wb");
    if (file == nullptr) return failed("fopen", temporary, result_of(-1));
    const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), file);
    const long closed = result_of(std::fclose(file));
    if (written != bytes.size()) return failed("fwrite", temporary, static_cast<long>(written));
    if (closed < 0) return failed("fclose", temporary, closed);
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    return renamed < 0 ? failed("rename", temporary, renamed) : Outcome{};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = root_ + "/" + name_of(key);
    const long opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    struct stat status {};
    if (const long told = result_of(::fstat(fd.get(), &status)); told < 0) return failed("fstat", path, told);
    const long got = result_of(::read(fd.get(), into.data(), into.size()));
    if (got != static_cast<long>(into.size())) return failed("read", path, got);
    if (evictor_) evictor_->touch(name_of(key));
    return {};
  }

 protected:
  static std::string name_of(uint64_t key) { return hash_name(key) + "_Llama-3.1-8B_0_1.bin"; }

  const std::string root_;
  const uint64_t budget_bytes_;
  const bool evicts_;
  std::optional<Evictor> evictor_;

 private:
  // The file may go between the check and the touch; the engine ignores that.
  Outcome touch(uint64_t key) {
    if (evictor_) evictor_->touch(name_of(key));
    const std::string path = root_ + "/" + name_of(key);
    const long touched = result_of(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0));
    return touched < 0 && touched != -ENOENT ? failed("utimensat", path, touched) : Outcome{};
  }
};

class SglangV1 final : public Sglang {
 public:
  explicit SglangV1(const ClientOptions& options) : Sglang(options, true) {}

  // list() lists what a second process finds at its start.
  std::optional<Outcome> list(size_t& entries) override {
    Evictor other(root_, budget_bytes_);
    Outcome outcome = other.start();
    entries = other.entries();
    return outcome;
  }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    for (found = 0; found < keys.size(); ++found) {
      const std::string path = root_ + "/" + name_of(keys[found]);
      const long present = exists(path);
      if (present < 0) return failed("stat", path, present);
      if (present == 0) break;
    }
    return {};
  }
};

class SglangV2 final : public Sglang {
 public:
  explicit SglangV2(const ClientOptions& options) : Sglang(options, false) {}

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    std::vector<std::string> names;
    if (Outcome outcome = list_names(root_, names); !outcome.done()) return outcome;
    const std::unordered_set<std::string> known(names.begin(), names.end());
    found = 0;
    while (found < keys.size() && known.contains(name_of(keys[found]))) ++found;
    return {};
  }

  // list() and remove() are the two halves of a clear.
  std::optional<Outcome> list(size_t& entries) override {
    std::vector<std::string> names;
    Outcome outcome = list_names(root_, names);
    entries = names.size();
    return outcome;
  }
  std::optional<Outcome> remove(uint64_t key) override {
    const std::string path = root_ + "/" + name_of(key);
    const long removed = result_of(::unlink(path.c_str()));
    return removed < 0 ? missed_or_failed("unlink", path, removed) : Outcome{};
  }
};

}  // namespace

std::unique_ptr<Client> make_sglang_v1(const ClientOptions& options) {
  return std::make_unique<SglangV1>(options);
}
std::unique_ptr<Client> make_sglang_v2(const ClientOptions& options) {
  return std::make_unique<SglangV2>(options);
}

}  // namespace kvcachefs::clients
