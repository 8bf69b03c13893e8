// Opens and stores in one pool while a client queries the index of another without a pause. Its entries
// alternate between two directories, as deep as a path can be, so that a look at one costs the most; each
// follows the one before. Each store evicts an entry.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kEntries = 2560;
constexpr int kLevels = 1900;
constexpr size_t kBlockTokens = 16;
constexpr uint64_t kStoreBytes = 2 << 20;
constexpr uint64_t kOtherMemory = 64 << 20;

std::string tokens_of(uint64_t block) {
  const std::vector<uint32_t> tokens(kBlockTokens, static_cast<uint32_t>(block));
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0])};
}

void set(int file, const char* xattr, const std::string& value) {
  must(::fsetxattr(file, xattr, value.data(), value.size(), 0), "fsetxattr", xattr);
}

// A new directory.
UniqueFd directory_at(int parent, const std::string& name) {
  must(::mkdirat(parent, name.c_str(), 0755), "mkdirat", name);
  return UniqueFd(
      static_cast<int>(must(::openat(parent, name.c_str(), O_DIRECTORY | O_CLOEXEC), "openat", name)));
}

void store_deep(const std::string& directory, uint64_t count) {
  std::vector<UniqueFd> ends;
  for (const char* const top : {"a", "b"}) {
    UniqueFd end = directory_at(AT_FDCWD, directory + "/" + top);
    for (int level = 0; level < kLevels; ++level) end = directory_at(end.get(), "d");
    ends.push_back(std::move(end));
  }
  for (uint64_t number = 0; number < count; ++number) {
    const std::string name = std::to_string(number);
    const UniqueFd file(static_cast<int>(must(
        ::openat(ends[number % 2].get(), name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644), "open", name)));
    set(file.get(), "user.kv.agent", "bench");
    if (number > 0) set(file.get(), "user.kv.parent", std::to_string(number - 1));
    set(file.get(), "user.kv.tokens", tokens_of(number));
  }
}

// While it lives, the query is asked again and again.
class Asker {
 public:
  Asker(const std::string& control, std::string query, uint64_t& answers)
      : thread_([this, control, query = std::move(query), &answers] {
          std::string buffer(1 << 20, '\0');
          for (; !stopping_; ++answers) {
            const UniqueFd file(::open(control.c_str(), O_RDWR | O_CLOEXEC));
            if (::write(file.get(), query.data(), query.size()) < 0) continue;
            while (!stopping_ && ::read(file.get(), buffer.data(), buffer.size()) > 0) continue;
          }
        }) {}
  ~Asker() { stopping_ = true; }
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

 private:
  std::atomic<bool> stopping_ = false;
  std::jthread thread_;
};

void rows_beside(Bench& bench, const std::string& other, const Kvcachefs& ours, const std::string& what,
                 const std::string& query) {
  uint64_t stored = 0, answers = 0;
  const auto store = [&] { store_entry(other, std::to_string(stored++ % 256), payload(kStoreBytes)); };
  const auto open_and_close = [entry = other + "/entry0"] {
    ::close(static_cast<int>(must(::open(entry.c_str(), O_RDONLY | O_CLOEXEC), "open", entry)));
  };
  const uint64_t stores = bench.scale.quick ? 5 : 200;
  Latency warm_up, stores_without, stores_with, opens_without, opens_with;
  warm_up.measure(2 * kOtherMemory / kStoreBytes, store);
  store_entries(other, "entry", 1, payload(64 << 10));
  for (unsigned round = 0; round < bench.scale.rounds; ++round) {
    const auto both = [&](Latency& opens, Latency& with_eviction) {
      opens.measure(bench.scale.operations, open_and_close);
      with_eviction.measure(stores, store);
      store_entries(other, "entry", 1, payload(64 << 10));
    };
    both(opens_without, stores_without);
    const Asker asker(ours.control("match"), query, answers);
    both(opens_with, stores_with);
  }
  if (answers == 0) throw BenchError(what + ": no answer");
  const auto add = [&](const std::string& figure, const std::vector<double>& with,
                       const std::vector<double>& without) {
    bench.report.add({fmt::format("{}, beside {} of another pool", figure, what), "the same without it",
                      fmt::format("{:.1f} µs", median(with)), fmt::format("{:.1f} µs", median(without)),
                      median_ratio(with, without), Row::Bound::kAtMost, 1.5});
  };
  add("open and close, median", opens_with.median_us(), opens_without.median_us());
  add("open and close, p99", opens_with.p99_us(), opens_without.p99_us());
  add("store of 2 MiB with an eviction, median", stores_with.median_us(), stores_without.median_us());
  add("store of 2 MiB with an eviction, p99", stores_with.p99_us(), stores_without.p99_us());
}

}  // namespace

void query_rows(Bench& bench) {
  const Kvcachefs ours(bench.work, "queries", "size=256M");
  const std::string other = ours.directory() + "/../other";
  must(::mkdir(other.c_str(), 0755), "mkdir", other);
  const UniqueFd size(
      static_cast<int>(must(::open((other + "/.pool/size").c_str(), O_WRONLY | O_CLOEXEC), "open", other)));
  const std::string bytes = std::to_string(kOtherMemory);
  must(::write(size.get(), bytes.data(), bytes.size()), "write", "size");
  const uint64_t count = bench.scale.quick ? 16 : kEntries;
  store_deep(ours.directory(), count);
  std::string tokens = "tokens\n";
  for (uint64_t number = 0; number < count; ++number)
    for (size_t token = 0; token < kBlockTokens; ++token) tokens += std::to_string(number) + " ";
  rows_beside(bench, other, ours, fmt::format("a prompt of {} deep entries", count), tokens + "\n");
  rows_beside(bench, other, ours, fmt::format("a list of {} deep entries", count), "where agent=bench\n");
}

}  // namespace kvcachefs::bench
