// LMCache's GDS backend on a machine without cuFile: the header by a buffered write, then ftruncate and a
// copy through a shared mapping. Probes read a second small file beside it (O_NOATIME). Loads use a private,
// populated mapping. A start scans all small files. The engine makes each directory once in its life.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

constexpr size_t kHeaderBytes = 4096;
constexpr std::string_view kHeaderStart = "{\"kvcache\": ";

class LmcacheGds final : public Client {
 public:
  explicit LmcacheGds(const ClientOptions& options) : root_(options.root + "/gds") {}

  Outcome start() override {
    if (Outcome outcome = make_directories(root_); !outcome.done()) return outcome;
    size_t entries = 0;
    return scan(entries);
  }

  std::optional<Outcome> list(size_t& entries) override { return scan(entries); }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    const std::string directory = path.substr(0, path.rfind('/'));
    if (!made_.contains(directory))
      if (Outcome outcome = make_directories(directory); !outcome.done()) return outcome;
    made_.insert(directory);
    const std::string temporary = path + temporary_suffix();
    if (Outcome outcome = write_header(temporary, key); !outcome.done()) return outcome;
    if (Outcome outcome = write_through_mapping(temporary, bytes); !outcome.done()) return outcome;
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    if (renamed < 0) return failed("rename", temporary, renamed);
    const std::string metadata = path + ".metadata";
    const std::string metadata_temporary = metadata + temporary_suffix();
    if (Outcome outcome = write_header(metadata_temporary, key); !outcome.done()) return outcome;
    const long told = result_of(::rename(metadata_temporary.c_str(), metadata.c_str()));
    return told < 0 ? failed("rename", metadata_temporary, told) : Outcome{};
  }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    for (found = 0; found < keys.size(); ++found) {
      Outcome outcome = read_metadata(keys[found]);
      if (outcome.failed()) return outcome;
      if (outcome.missed()) break;
    }
    return {};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const long opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    struct stat status {};
    if (const long told = result_of(::fstat(fd.get(), &status)); told < 0) return failed("fstat", path, told);
    const size_t size_bytes = kHeaderBytes + into.size();
    if (static_cast<size_t>(status.st_size) != size_bytes) return failed("fstat size", path, status.st_size);
    void* const map = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd.get(), 0);
    if (map == MAP_FAILED) return failed("mmap", path, result_of(-1));
    std::memcpy(into.data(), static_cast<const std::byte*>(map) + kHeaderBytes, into.size());
    ::munmap(map, size_bytes);
    return {};
  }

 private:
  std::string path_of(uint64_t key) const {
    const std::string hash = hash_name(key);
    return root_ + "/" + hash.substr(0, 2) + "/" + hash.substr(2, 2) + "/vllm%40Llama-3.1-8B%401%400%40" +
           hash + ".kvcache.safetensors";
  }
  static std::string temporary_suffix() {
    char suffix[16];
    std::snprintf(suffix, sizeof suffix, ".tmp%08x", static_cast<unsigned>(random_number()));
    return suffix;
  }
  static std::array<char, kHeaderBytes> header(uint64_t key) {
    std::array<char, kHeaderBytes> head{};
    std::snprintf(head.data(), head.size(), "%s{\"dtype\": \"BF16\", \"key\": %llu}}", kHeaderStart.data(),
                  static_cast<unsigned long long>(key));
    return head;
  }

  static Outcome write_header(const std::string& path, uint64_t key) {
    const long fd = result_of(::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666));
    if (fd < 0) return failed("open", path, fd);
    const auto head = header(key);
    const long written = result_of(::write(static_cast<int>(fd), head.data(), head.size()));
    const long closed = close_fd(static_cast<int>(fd));
    if (written != static_cast<long>(head.size())) return failed("write", path, written);
    return closed < 0 ? failed("close", path, closed) : Outcome{};
  }

  static Outcome write_through_mapping(const std::string& path, std::span<const std::byte> bytes) {
    const long opened = result_of(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (opened < 0) return failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    const size_t size_bytes = kHeaderBytes + bytes.size();
    const long sized = result_of(::ftruncate(fd.get(), static_cast<off_t>(size_bytes)));
    if (sized < 0) return failed("ftruncate", path, sized);
    void* const map = ::mmap(nullptr, size_bytes, PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (map == MAP_FAILED) return failed("mmap", path, result_of(-1));
    std::memcpy(static_cast<std::byte*>(map) + kHeaderBytes, bytes.data(), bytes.size());
    ::munmap(map, size_bytes);
    return {};
  }

  // The engine's scan at its start: both levels of directories, and in them each metadata file. A file that
  // went since it was listed is left out.
  Outcome scan(size_t& entries) const {
    entries = 0;
    std::vector<std::string> outer;
    if (Outcome outcome = list_names(root_, outer); !outcome.done()) return outcome;
    for (const std::string& first : outer) {
      std::vector<std::string> inner;
      if (Outcome outcome = list_names(root_ + "/" + first, inner); !outcome.done()) return outcome;
      for (const std::string& second : inner) {
        const std::string directory = root_ + "/" + first + "/" + second;
        if (Outcome outcome = scan_leaf(directory, entries); !outcome.done()) return outcome;
      }
    }
    return {};
  }

  static Outcome scan_leaf(const std::string& directory, size_t& entries) {
    std::vector<std::string> names;
    if (Outcome outcome = list_names(directory, names); !outcome.done()) return outcome;
    for (const std::string& name : names) {
      if (!name.ends_with(".metadata")) continue;
      const std::string path = directory + "/" + name;
      std::array<char, kHeaderBytes> head;
      const Outcome outcome = read_head(path, head);
      if (outcome.failed()) return outcome;
      if (outcome.missed()) continue;
      if (std::string_view(head.data()).substr(0, kHeaderStart.size()) != kHeaderStart)
        return failed("compare metadata", path, 0);
      ++entries;
    }
    return {};
  }

  Outcome read_metadata(uint64_t key) const {
    const std::string path = path_of(key) + ".metadata";
    const long present = exists(path);
    if (present == 0) return {Outcome::Kind::kMiss};
    if (present < 0) return failed("stat", path, present);
    std::array<char, kHeaderBytes> head;
    if (Outcome outcome = read_head(path, head); !outcome.done()) return outcome;
    return head == header(key) ? Outcome{} : failed("compare metadata", path, 0);
  }

  // Because the kernel refuses O_NOATIME to a process that does not own the file, the engine then opens it
  // without.
  static Outcome read_head(const std::string& path, std::array<char, kHeaderBytes>& head) {
    long opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME));
    if (opened == -EPERM) opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    const long got = result_of(::read(fd.get(), head.data(), head.size()));
    return got == static_cast<long>(head.size()) ? Outcome{} : failed("read", path, got);
  }

  std::unordered_set<std::string> made_;  // the directories made
  const std::string root_;
};

}  // namespace

std::unique_ptr<Client> make_lmcache_gds(const ClientOptions& options) {
  return std::make_unique<LmcacheGds>(options);
}

}  // namespace kvcachefs::clients
