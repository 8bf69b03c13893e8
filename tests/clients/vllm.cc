// vLLM's `fs` tier: makedirs each time, an exclusive temporary file, one write of the whole block, replace; a
// batch of faccessat; one readv; 16 threads that read first and 16 that write first. It uses O_DIRECT if the
// page written at the start showed that the file system accepts it.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>

#include "base/unique_fd.h"
#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

class Vllm final : public Client {
 public:
  Vllm(const ClientOptions& options, bool direct)
      : base_(options.root + "/meta-llama_Llama-3.1-8B_0123456789ab"), direct_flag_(direct ? O_DIRECT : 0) {}

  Outcome start() override {
    if (Outcome outcome = make_directories(base_); !outcome.done()) return outcome;
    if (Outcome outcome = write_configuration(); !outcome.done()) return outcome;
    return direct_flag_ != 0 ? try_direct() : Outcome{};
  }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    const long found = exists(path);
    if (found < 0) return failed("stat", path, found);
    if (found == 1) return {.existed = true};
    if (Outcome outcome = make_directories(path.substr(0, path.rfind('/'))); !outcome.done()) return outcome;
    const std::string temporary = path + "_" + std::to_string(random_number()) + ".tmp";
    const int flags = O_CREAT | O_EXCL | O_WRONLY | O_TRUNC | O_CLOEXEC | direct_flag_;
    const long fd = result_of(::open(temporary.c_str(), flags, 0644));
    if (fd < 0) return failed("open", temporary, fd);
    const long written = result_of(::write(static_cast<int>(fd), bytes.data(), bytes.size()));
    const long closed = close_fd(static_cast<int>(fd));
    if (written != static_cast<long>(bytes.size())) return failed("write", temporary, written);
    if (closed < 0) return failed("close", temporary, closed);
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    return renamed < 0 ? failed("rename", temporary, renamed) : Outcome{};
  }

  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    found = keys.size();
    for (size_t index = 0; index < keys.size(); ++index) {
      const std::string path = path_of(keys[index]);
      const long present = result_of(::faccessat(AT_FDCWD, path.c_str(), F_OK, 0));
      if (present < 0 && present != -ENOENT) return failed("faccessat", path, present);
      if (present < 0 && index < found) found = index;
    }
    return {};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const long opened = result_of(::open(path.c_str(), O_RDONLY | O_CLOEXEC | direct_flag_));
    if (opened < 0) return missed_or_failed("open", path, opened);
    const UniqueFd fd(static_cast<int>(opened));
    iovec vector{into.data(), into.size()};
    const long got = result_of(::readv(fd.get(), &vector, 1));
    return got == static_cast<long>(into.size()) ? Outcome{} : failed("readv", path, got);
  }

  unsigned threads() const override { return 32; }
  unsigned write_first_threads() const override { return 16; }

 private:
  std::string path_of(uint64_t key) const {
    const std::string hash = hash_name(key);
    return base_ + "_r0/" + hash.substr(0, 3) + "/" + hash.substr(3, 2) + "_g0/" + hash + ".bin";
  }

  // Both processes write the file, each under its temporary name first: the content is the same whichever
  // comes last.
  Outcome write_configuration() const {
    static constexpr char kText[] = "{\"block_size\": 16, \"dtype\": \"bfloat16\"}\n";
    const std::string path = base_ + "/config.json";
    const std::string temporary = path + "." + std::to_string(random_number());
    std::FILE* const file = std::fopen(temporary.c_str(), "w");
    if (file == nullptr) return failed("fopen", temporary, result_of(-1));
    const bool written = std::fputs(kText, file) >= 0;
    if (std::fclose(file) != 0 || !written) return failed("fclose", temporary, result_of(-1));
    const long renamed = result_of(::rename(temporary.c_str(), path.c_str()));
    return renamed < 0 ? failed("rename", temporary, renamed) : Outcome{};
  }

  Outcome try_direct() const {
    const std::string path = base_ + "/.o_direct_probe_" + std::to_string(random_number());
    const Buffer page(4096);
    const long fd =
        result_of(::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC | O_DIRECT, 0644));
    if (fd < 0) return failed("open", path, fd);
    const long written = result_of(::write(static_cast<int>(fd), page.span().data(), 4096));
    close_fd(static_cast<int>(fd));
    if (written != 4096) return failed("write", path, written);
    const long removed = result_of(::unlink(path.c_str()));
    return removed < 0 ? failed("unlink", path, removed) : Outcome{};
  }

  std::string base_;
  int direct_flag_;
};

}  // namespace

std::unique_ptr<Client> make_vllm_direct(const ClientOptions& options) {
  return std::make_unique<Vllm>(options, true);
}
std::unique_ptr<Client> make_vllm_buffered(const ClientOptions& options) {
  return std::make_unique<Vllm>(options, false);
}

}  // namespace kvcachefs::clients
