// llm-d's file system backend: create_directories, an ofstream with a buffer of 1 MiB on a temporary name,
// rename. Loads by an ifstream that takes the wanted bytes from the end of the file. A hit sets the file's
// access time and leaves the other time alone.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

class LlmD final : public Client {
 public:
  explicit LlmD(const ClientOptions& options) : base_(options.root + "/llama_0123456789ab_r0") {}

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    std::error_code error;
    std::filesystem::create_directories(path.substr(0, path.rfind('/')), error);
    if (error) return failed("create_directories", path, -error.value());
    const std::string temporary = path + "_" + std::to_string(random_number());
    {
      std::vector<char> buffer(size_t{1} << 20);
      std::ofstream file;
      file.rdbuf()->pubsetbuf(buffer.data(), static_cast<std::streamsize>(buffer.size()));
      file.open(temporary, std::ios::binary | std::ios::trunc);
      if (!file) return failed("ofstream open", temporary, result_of(-1));
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      file.flush();
      if (!file) return failed("ofstream write", temporary, result_of(-1));
    }
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    return renamed < 0 ? failed("rename", temporary, renamed) : Outcome{};
  }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    for (found = 0; found < keys.size(); ++found) {
      const std::string path = path_of(keys[found]);
      const long present = exists(path);
      if (present < 0) return failed("stat", path, present);
      if (present == 0) break;
    }
    return {};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) return missed_or_failed("ifstream open", path, result_of(-1));
    const auto size_bytes = static_cast<std::streamoff>(file.tellg());
    const auto wanted = static_cast<std::streamoff>(into.size());
    if (size_bytes < wanted) return failed("ifstream tellg", path, size_bytes);
    file.seekg(size_bytes - wanted);
    file.read(reinterpret_cast<char*>(into.data()), wanted);
    if (file.gcount() != wanted) return failed("ifstream read", path, file.gcount());
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
    const long touched = result_of(::utimensat(AT_FDCWD, path.c_str(), times, 0));
    return touched < 0 && touched != -ENOENT ? failed("utimensat", path, touched) : Outcome{};
  }

  unsigned threads() const override { return 4; }

 private:
  std::string path_of(uint64_t key) const {
    const std::string hash = hash_name(key);
    return base_ + "/" + hash.substr(0, 3) + "/" + hash.substr(3, 2) + "_g0/" + hash + ".bin";
  }

  const std::string base_;
};

}  // namespace

std::unique_ptr<Client> make_llm_d(const ClientOptions& options) {
  return std::make_unique<LlmD>(options);
}

}  // namespace kvcachefs::clients
