// The interface of every replayed engine for the tests: store, probe and load of one cache entry, each with
// exactly the engine's system calls (flags, sizes, order). threads() threads at once may call store() and
// load(), each for another key; only one thread may call the rest. A failure is an Outcome that names the
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvcachefs::clients {

// The outcome of an engine's call. A miss is only an ENOENT at the call where the engine looks for the file:
// any other error, any short count and a file that vanishes between open and read is a failure.
struct Outcome {
  enum class Kind { kDone, kMiss, kFailed };
  Kind kind = Kind::kDone;
  std::string reason = {};
  bool existed = false;  // a store that wrote nothing, because the entry was there

  bool done() const { return kind == Kind::kDone; }
  bool missed() const { return kind == Kind::kMiss; }
  bool failed() const { return kind == Kind::kFailed; }
};

enum class Sharing {
  kNone,         // a process uses only its own entries (an index in memory, or files written in place)
  kOwnerStores,  // all may load, but temporary names would collide if two processes stored one key
  kAll,          // any process stores and loads any key
};

class Client {
 public:
  virtual ~Client() = default;
  virtual Outcome start() { return {}; }
  virtual Outcome store(uint64_t key, std::span<const std::byte> bytes) = 0;
  // probe() sets `found` to the number of `keys`, counted from the first, that exist.
  virtual Outcome probe(std::span<const uint64_t> keys, size_t& found) = 0;
  virtual Outcome load(uint64_t key, std::span<std::byte> into) = 0;
  // list() counts the entries of all processes as the engine does when it starts or lists; nullopt if the
  // engine never does.
  virtual std::optional<Outcome> list(size_t& /*entries*/) { return std::nullopt; }
  // remove() deletes an entry, a miss if it is gone; nullopt if the engine deletes none, or does so within
  // store().
  virtual std::optional<Outcome> remove(uint64_t /*key*/) { return std::nullopt; }
  virtual Sharing sharing() const { return Sharing::kAll; }
  virtual unsigned threads() const { return 1; }
  // How many of threads() take a store if there is one and else a load; the others take a load first. An
  // engine with such threads has several requests under way at once.
  virtual unsigned write_first_threads() const { return 0; }
};

struct ClientOptions {
  std::string root;           // a directory of the mount
  uint64_t entry_bytes = 0;   // a multiple of 4096
  uint64_t budget_bytes = 0;  // for engines that keep a budget
};

// All engines; the test of each has its name.
struct Engine {
  const char* name;
  uint64_t entry_bytes;
  std::unique_ptr<Client> (*make)(const ClientOptions&);
};
const std::vector<Engine>& engines();

std::unique_ptr<Client> make_vllm_direct(const ClientOptions& options);
std::unique_ptr<Client> make_vllm_buffered(const ClientOptions& options);
std::unique_ptr<Client> make_sglang_v1(const ClientOptions& options);
std::unique_ptr<Client> make_sglang_v2(const ClientOptions& options);
std::unique_ptr<Client> make_lmcache_local_disk(const ClientOptions& options);
std::unique_ptr<Client> make_lmcache_local_disk_direct(const ClientOptions& options);
std::unique_ptr<Client> make_lmcache_fs(const ClientOptions& options);
std::unique_ptr<Client> make_lmcache_mp_fs(const ClientOptions& options);
std::unique_ptr<Client> make_lmcache_fs_native(const ClientOptions& options);
std::unique_ptr<Client> make_lmcache_gds(const ClientOptions& options);
std::unique_ptr<Client> make_llama_cpp(const ClientOptions& options);
std::unique_ptr<Client> make_llm_d(const ClientOptions& options);
std::unique_ptr<Client> make_ucm(const ClientOptions& options);
std::unique_ptr<Client> make_aibrix(const ClientOptions& options);
std::unique_ptr<Client> make_kvbm(const ClientOptions& options);

}  // namespace kvcachefs::clients
