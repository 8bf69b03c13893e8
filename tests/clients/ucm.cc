// UCM's posix store: an entry has shards, and each shard opens the temporary file (O_DIRECT) and writes at
// its offset with libaio; the last shard renames. Loads by O_DIRECT and libaio; a hit is touched.
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utime.h>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

constexpr size_t kShards = 4;

class Ucm final : public Client {
 public:
  explicit Ucm(const ClientOptions& options) : root_(options.root + "/ucm/data") {}
  ~Ucm() override {
    if (context_ != 0) ::syscall(SYS_io_destroy, context_);
  }

  Outcome start() override {
    const long made = result_of(::syscall(SYS_io_setup, 8, &context_));
    if (made < 0) return failed("io_setup", root_, made);
    return make_directories(root_);
  }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    const std::string temporary = path + ".tmp";
    const size_t shard_bytes = bytes.size() / kShards;
    for (size_t shard = 0; shard < kShards; ++shard) {
      const long fd = result_of(::open(temporary.c_str(), O_DIRECT | O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
      if (fd < 0) return failed("open", temporary, fd);
      const std::byte* const from = bytes.data() + shard * shard_bytes;
      const long written = transfer(IOCB_CMD_PWRITE, static_cast<int>(fd), const_cast<std::byte*>(from),
                                    shard_bytes, shard * shard_bytes);
      const long closed = close_fd(static_cast<int>(fd));
      if (written != static_cast<long>(shard_bytes)) return failed("aio write", temporary, written);
      if (closed < 0) return failed("close", temporary, closed);
    }
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    return renamed < 0 ? failed("rename", temporary, renamed) : Outcome{};
  }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    for (found = 0; found < keys.size(); ++found) {
      const std::string path = path_of(keys[found]);
      const long present = result_of(::access(path.c_str(), F_OK));
      if (present == -ENOENT) break;
      if (present < 0) return failed("access", path, present);
      const long touched = result_of(::utime(path.c_str(), nullptr));
      if (touched < 0 && touched != -ENOENT) return failed("utime", path, touched);
    }
    return {};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const size_t shard_bytes = into.size() / kShards;
    for (size_t shard = 0; shard < kShards; ++shard) {
      const long opened = result_of(::open(path.c_str(), O_DIRECT | O_RDONLY | O_CLOEXEC));
      if (opened < 0) return missed_or_failed("open", path, opened);
      const UniqueFd fd(static_cast<int>(opened));
      const long got = transfer(IOCB_CMD_PREAD, fd.get(), into.data() + shard * shard_bytes, shard_bytes,
                                shard * shard_bytes);
      if (got != static_cast<long>(shard_bytes)) return failed("aio read", path, got);
    }
    return {};
  }

  Sharing sharing() const override { return Sharing::kOwnerStores; }

 private:
  std::string path_of(uint64_t key) const { return root_ + "/" + hash_name(key).substr(0, 32); }

  long transfer(unsigned command, int fd, std::byte* buffer, size_t size_bytes, size_t offset) const {
    iocb request{};
    request.aio_lio_opcode = static_cast<uint16_t>(command);
    request.aio_fildes = static_cast<uint32_t>(fd);
    request.aio_buf = reinterpret_cast<uintptr_t>(buffer);
    request.aio_nbytes = size_bytes;
    request.aio_offset = static_cast<int64_t>(offset);
    iocb* requests[] = {&request};
    const long submitted = result_of(::syscall(SYS_io_submit, context_, 1, requests));
    if (submitted != 1) return submitted;
    io_event event{};
    const long reaped = result_of(::syscall(SYS_io_getevents, context_, 1, 1, &event, nullptr));
    return reaped == 1 ? static_cast<long>(event.res) : reaped;
  }

  const std::string root_;
  aio_context_t context_ = 0;
};

}  // namespace

std::unique_ptr<Client> make_ucm(const ClientOptions& options) {
  return std::make_unique<Ucm>(options);
}

}  // namespace kvcachefs::clients
