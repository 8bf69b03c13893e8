// LMCache's file connectors with one temporary name for each entry: FSConnector (a header of 28 bytes, so
// that data is not aligned), the multi-process `fs` adapter (raw bytes, O_DIRECT by size) and `fs_native`
// (C++, four workers, looped calls).
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

class LmcacheFile : public Client {
 public:
  explicit LmcacheFile(const std::string& root) : root_(root) {}

  Outcome start() override { return make_directories(root_); }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    for (found = 0; found < keys.size(); ++found) {
      const std::string path = path_of(keys[found]);
      const long present = exists(path);
      if (present < 0) return failed("stat", path, present);
      if (present == 0) break;
    }
    return {};
  }

  Sharing sharing() const override { return Sharing::kOwnerStores; }

  std::optional<Outcome> remove(uint64_t key) override {
    const std::string path = path_of(key);
    const long removed = result_of(::unlink(path.c_str()));
    return removed < 0 ? missed_or_failed("unlink", path, removed) : Outcome{};
  }

 protected:
  virtual std::string path_of(uint64_t key) const {
    return root_ + "/meta-llama-SEP-Llama-3.1-8B@0x00000000@0@" + hash_name(key) + ".data";
  }

  // publish() closes `fd`, and renames the file if all calls before succeeded.
  static Outcome publish(int fd, long written, size_t wanted, const std::string& temporary,
                         const std::string& path) {
    const long closed = close_fd(fd);
    if (written != static_cast<long>(wanted)) return failed("write", temporary, written);
    if (closed < 0) return failed("close", temporary, closed);
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    return renamed < 0 ? failed("rename", temporary, renamed) : Outcome{};
  }

  const std::string root_;
};

constexpr size_t kHeaderBytes = 28;
constexpr size_t kPythonBufferBytes = 8192;

class LmcacheFs final : public LmcacheFile {
 public:
  explicit LmcacheFs(const ClientOptions& options) : LmcacheFile(options.root + "/fs_connector") {}

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    const std::string temporary = path.substr(0, path.size() - 5) + ".tmp";
    const long fd = result_of(::open(temporary.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666));
    if (fd < 0) return failed("open", temporary, fd);
    const auto head = header(key, bytes.size());
    const long first = result_of(::write(static_cast<int>(fd), head.data(), head.size()));
    const long second =
        first < 0 ? first : result_of(::write(static_cast<int>(fd), bytes.data(), bytes.size()));
    return publish(static_cast<int>(fd), second < 0 ? second : first + second, kHeaderBytes + bytes.size(),
                   temporary, path);
  }

  // glob("*.data") reads only the names.
  std::optional<Outcome> list(size_t& entries) override {
    std::vector<std::string> names;
    Outcome outcome = list_names(root_, names);
    entries = static_cast<size_t>(
        std::ranges::count_if(names, [](const std::string& name) { return name.ends_with(".data"); }));
    return outcome;
  }

  // The engine asks for all keys at once, from the pool of threads behind aiofiles.
  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    std::vector<long> present(keys.size());
    std::atomic<size_t> next = 0;
    {
      std::vector<std::jthread> workers;
      for (int worker = 0; worker < 4; ++worker) {
        workers.emplace_back([&] {
          for (size_t index = next++; index < keys.size(); index = next++)
            present[index] = exists(path_of(keys[index]));
        });
      }
    }
    for (found = 0; found < keys.size() && present[found] != 0; ++found) {
      if (present[found] < 0) return failed("stat", path_of(keys[found]), present[found]);
    }
    return {};
  }

  // A buffered Python file reads 8192 bytes for the header, then the rest of the data directly to its place.
  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const long opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    std::array<std::byte, kPythonBufferBytes> buffer;
    const long first = result_of(::read(fd.get(), buffer.data(), buffer.size()));
    if (first != static_cast<long>(buffer.size())) return failed("read", path, first);
    const auto head = header(key, into.size());
    if (std::memcmp(buffer.data(), head.data(), head.size()) != 0) return failed("compare header", path, 0);
    const size_t buffered = buffer.size() - kHeaderBytes;
    std::memcpy(into.data(), buffer.data() + kHeaderBytes, buffered);
    const long rest = read_all(fd.get(), into.subspan(buffered));
    return rest == static_cast<long>(into.size() - buffered) ? Outcome{} : failed("read", path, rest);
  }

  unsigned threads() const override { return 4; }

 private:
  std::string path_of(uint64_t key) const override {
    return root_ + "/vllm@meta-llama-Llama-3.1-8B@1@0@" + hash_name(key) + ".data";
  }
  static std::array<std::byte, kHeaderBytes> header(uint64_t key, uint64_t size_bytes) {
    std::array<std::byte, kHeaderBytes> head{};
    std::memcpy(head.data(), &size_bytes, 8);
    std::memcpy(head.data() + 8, &key, 8);
    return head;
  }
};

class LmcacheMpFs final : public LmcacheFile {
 public:
  explicit LmcacheMpFs(const ClientOptions& options) : LmcacheFile(options.root + "/mp_fs") {}

  Outcome start() override {
    if (Outcome outcome = LmcacheFile::start(); !outcome.done()) return outcome;
    struct statvfs space {};
    const long told = result_of(::statvfs(root_.c_str(), &space));
    if (told < 0) return failed("statvfs", root_, told);
    block_bytes_ = space.f_bsize;
    size_t entries = 0;
    return scan(entries);
  }

  std::optional<Outcome> list(size_t& entries) override { return scan(entries); }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    const long found = exists(path);
    if (found < 0) return failed("stat", path, found);
    if (found == 1) return {};
    const std::string temporary = path + ".tmp";
    const int flags = direct(bytes.size()) ? O_CREAT | O_WRONLY | O_DIRECT : O_CREAT | O_WRONLY | O_TRUNC;
    const long fd = result_of(::open(temporary.c_str(), flags | O_CLOEXEC, 0644));
    if (fd < 0) return failed("open", temporary, fd);
    const long written = result_of(::write(static_cast<int>(fd), bytes.data(), bytes.size()));
    return publish(static_cast<int>(fd), written, bytes.size(), temporary, path);
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const long opened =
        result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct(into.size()) ? O_DIRECT : 0)));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    const long got = read_all(fd.get(), into);
    return got == static_cast<long>(into.size()) ? Outcome{} : failed("read", path, got);
  }

 private:
  // A start with a cap counts all files and their sizes, except files that went since they were listed.
  Outcome scan(size_t& entries) const {
    entries = 0;
    std::vector<std::string> names;
    if (Outcome outcome = list_names(root_, names); !outcome.done()) return outcome;
    for (const std::string& name : names) {
      if (!name.ends_with(".data")) continue;
      const long found = exists(root_ + "/" + name);
      if (found < 0) return failed("stat", root_ + "/" + name, found);
      entries += static_cast<size_t>(found);
    }
    return {};
  }

  bool direct(size_t size_bytes) const { return size_bytes % block_bytes_ == 0; }
  uint64_t block_bytes_ = 4096;
};

class LmcacheFsNative final : public LmcacheFile {
 public:
  explicit LmcacheFsNative(const ClientOptions& options) : LmcacheFile(options.root + "/fs_native") {}

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    const std::string temporary = path + ".tmp";
    const int flags = O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC | direct_flag(bytes.data(), bytes.size());
    const long fd = result_of(::open(temporary.c_str(), flags, 0644));
    if (fd < 0) return failed("open", temporary, fd);
    const long written = write_all(static_cast<int>(fd), bytes);
    return publish(static_cast<int>(fd), written, bytes.size(), temporary, path);
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const int flags = O_RDONLY | O_CLOEXEC | direct_flag(into.data(), into.size());
    const long opened = result_of(::open(path.c_str(), flags));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    const long got = read_all(fd.get(), into);
    return got == static_cast<long>(into.size()) ? Outcome{} : failed("read", path, got);
  }

  unsigned threads() const override { return 4; }

 private:
  static int direct_flag(const void* pointer, size_t size_bytes) {
    return (reinterpret_cast<uintptr_t>(pointer) | size_bytes) % 4096 == 0 ? O_DIRECT : 0;
  }
};

}  // namespace

std::unique_ptr<Client> make_lmcache_fs(const ClientOptions& options) {
  return std::make_unique<LmcacheFs>(options);
}
std::unique_ptr<Client> make_lmcache_mp_fs(const ClientOptions& options) {
  return std::make_unique<LmcacheMpFs>(options);
}
std::unique_ptr<Client> make_lmcache_fs_native(const ClientOptions& options) {
  return std::make_unique<LmcacheFsNative>(options);
}

}  // namespace kvcachefs::clients
