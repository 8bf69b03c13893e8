// SGLang's `file` storage: a flat directory; `tofile` (fopen "wb", fwrite) into
// <final>.tmp.<pid>.<tid>.<uuid>, replace; a file that exists is touched. v1 asks for each key up to the
// first miss, v2 lists the whole directory for each call.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <unordered_set>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

class Sglang : public Client {
 public:
  explicit Sglang(const ClientOptions& options) : root_(options.root + "/hicache") {}

  // The optional evictor's start: what is there, how old it is, how large the file system is.
  Outcome start() override {
    if (Outcome outcome = make_directories(root_); !outcome.done()) return outcome;
    std::unordered_set<std::string> names;
    if (Outcome outcome = list(names); !outcome.done()) return outcome;
    for (const std::string& name : names) {
      const long found = exists(root_ + "/" + name);
      if (found < 0) return failed("stat", name, found);
    }
    struct statvfs space {};
    const long told = result_of(::statvfs(root_.c_str(), &space));
    if (told < 0) return failed("statvfs", root_, told);
    return space.f_bsize == 4096 ? Outcome{}
                                 : failed("statvfs f_bsize", root_, static_cast<long>(space.f_bsize));
  }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = root_ + "/" + name_of(key);
    const long found = exists(path);
    if (found < 0) return failed("stat", path, found);
    if (found == 1) return touch(path);
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
    return got == static_cast<long>(into.size()) ? Outcome{} : failed("read", path, got);
  }

 protected:
  static std::string name_of(uint64_t key) { return hash_name(key) + "_Llama-3.1-8B_0_1.bin"; }

  Outcome list(std::unordered_set<std::string>& names) const {
    DIR* const directory = ::opendir(root_.c_str());
    if (directory == nullptr) return failed("opendir", root_, result_of(-1));
    while (const dirent* entry = ::readdir(directory)) {
      if (entry->d_name[0] != '.') names.insert(entry->d_name);
    }
    ::closedir(directory);
    return {};
  }

  const std::string root_;

 private:
  // The file may go between the question and the touch; the engine then leaves it at that.
  static Outcome touch(const std::string& path) {
    const long touched = result_of(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0));
    return touched < 0 && touched != -ENOENT ? failed("utimensat", path, touched) : Outcome{};
  }
};

class SglangV1 final : public Sglang {
 public:
  using Sglang::Sglang;
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
  using Sglang::Sglang;
  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    std::unordered_set<std::string> names;
    if (Outcome outcome = list(names); !outcome.done()) return outcome;
    found = 0;
    while (found < keys.size() && names.contains(name_of(keys[found]))) ++found;
    return {};
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
