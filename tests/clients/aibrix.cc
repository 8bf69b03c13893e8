// AIBrix's shfs connector: hashed sub-directory, temporary file, replace, then a stat to check the size;
// loads by stat and one read of the whole file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

class Aibrix final : public Client {
 public:
  explicit Aibrix(const ClientOptions& options) : root_(options.root + "/shfs") {}

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    if (Outcome outcome = make_directories(path.substr(0, path.rfind('/'))); !outcome.done()) return outcome;
    const std::string temporary = path + ".tmp";
    const long fd = result_of(::open(temporary.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666));
    if (fd < 0) return failed("open", temporary, fd);
    const long written = result_of(::write(static_cast<int>(fd), bytes.data(), bytes.size()));
    const long closed = close_fd(static_cast<int>(fd));
    if (written != static_cast<long>(bytes.size())) return failed("write", temporary, written);
    if (closed < 0) return failed("close", temporary, closed);
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    if (renamed < 0) return failed("rename", temporary, renamed);
    struct stat status {};
    const long told = result_of(::stat(path.c_str(), &status));
    if (told < 0) return failed("stat", path, told);
    return static_cast<size_t>(status.st_size) == bytes.size() ? Outcome{}
                                                               : failed("stat size", path, status.st_size);
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
    struct stat status {};
    const long told = result_of(::stat(path.c_str(), &status));
    if (told < 0) return missed_or_failed("stat", path, told);
    if (static_cast<size_t>(status.st_size) != into.size()) return failed("stat size", path, status.st_size);
    const long opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    const long got = read_all(fd.get(), into);
    return got == static_cast<long>(into.size()) ? Outcome{} : failed("read", path, got);
  }

  Sharing sharing() const override { return Sharing::kOwnerStores; }

 private:
  std::string path_of(uint64_t key) const {
    const std::string hash = hash_name(key);
    return root_ + "/" + hash.substr(0, 2) + "/" + hash.substr(2, 2) + "/" + hash;
  }

  const std::string root_;
};

}  // namespace

std::unique_ptr<Client> make_aibrix(const ClientOptions& options) {
  return std::make_unique<Aibrix>(options);
}

}  // namespace kvcachefs::clients
