// llama.cpp's slot save and restore: fopen "wb" on the final name, a header and many small fwrites; then
// fopen "rb", a seek to the end for the size, and reads in order.
#include <algorithm>
#include <cstdio>
#include <string>
#include <unordered_set>

#include "tests/clients/calls.h"

namespace kvcachefs::clients {
namespace {

constexpr uint32_t kMagic = 0x67677371;
constexpr uint32_t kVersion = 2;
constexpr size_t kRowBytes = 2048;  // one layer's keys or values of one cell

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

class LlamaCpp final : public Client {
 public:
  explicit LlamaCpp(const ClientOptions& options) : root_(options.root + "/slots") {}

  Outcome start() override { return make_directories(root_); }

  Outcome store(uint64_t key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key);
    File file(std::fopen(path.c_str(), "wb"), std::fclose);
    if (!file) return failed("fopen", path, result_of(-1));
    const uint32_t tokens = static_cast<uint32_t>(bytes.size() / kRowBytes);
    bool written = put(file, &kMagic, 4) && put(file, &kVersion, 4) && put(file, &tokens, 4);
    for (uint32_t token = 0; written && token < tokens; ++token) written = put(file, &token, 4);
    for (size_t at = 0; written && at < bytes.size(); at += kRowBytes) {
      written = put(file, bytes.data() + at, std::min(kRowBytes, bytes.size() - at));
    }
    const long error = result_of(-1);
    if (!written) return failed("fwrite", path, error);
    const long closed = result_of(std::fclose(file.release()));
    if (closed < 0) return failed("fclose", path, closed);
    saved_.insert(key);
    return {};
  }

  // The server does not probe: it restores the entries that it saved.
  Outcome probe(std::span<const uint64_t> keys, size_t& found) override {
    found = 0;
    while (found < keys.size() && saved_.contains(keys[found])) ++found;
    return {};
  }

  Outcome load(uint64_t key, std::span<std::byte> into) override {
    const std::string path = path_of(key);
    const File file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) return missed_or_failed("fopen", path, result_of(-1));
    uint32_t head[3] = {};
    const uint32_t tokens = static_cast<uint32_t>(into.size() / kRowBytes);
    std::fseek(file.get(), 0, SEEK_END);
    const long size_bytes = std::ftell(file.get());
    std::fseek(file.get(), 0, SEEK_SET);
    if (size_bytes != static_cast<long>(sizeof head + tokens * 4 + into.size()))
      return failed("ftell", path, size_bytes);
    bool got = take(file, head, sizeof head) && head[0] == kMagic && head[1] == kVersion && head[2] == tokens;
    for (uint32_t token = 0, read = 0; got && token < tokens; ++token)
      got = take(file, &read, 4) && read == token;
    for (size_t at = 0; got && at < into.size(); at += kRowBytes) {
      got = take(file, into.data() + at, std::min(kRowBytes, into.size() - at));
    }
    return got ? Outcome{} : failed("fread", path, 0);
  }

  Sharing sharing() const override { return Sharing::kNone; }

 private:
  std::string path_of(uint64_t key) const { return root_ + "/slot-" + std::to_string(key) + ".bin"; }
  static bool put(const File& file, const void* data, size_t size) {
    return std::fwrite(data, 1, size, file.get()) == size;
  }
  static bool take(const File& file, void* data, size_t size) {
    return std::fread(data, 1, size, file.get()) == size;
  }

  const std::string root_;
  std::unordered_set<uint64_t> saved_;
};

}  // namespace

std::unique_ptr<Client> make_llama_cpp(const ClientOptions& options) {
  return std::make_unique<LlamaCpp>(options);
}

}  // namespace kvcachefs::clients
