// Queries for what a prompt can reuse: the longest prefix over the blocks of a chat service's trace, beside
// what an engine does today, a walk of the hashes that it knows in its own process and a stat of each block's
// file; a run of names beside as many stats; and what the index costs a store.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/rows.h"
#include "tests/clients/trace.h"

namespace kvcachefs::bench {
namespace {

constexpr size_t kBlockTokens = 16;
constexpr uint64_t kMostBlocks = 50'000;
constexpr uint64_t kNames = 6'250;
constexpr uint64_t kStoreBytes = 2 << 20;
constexpr uint64_t kStores = 64;

using Blocks = std::vector<uint64_t>;

std::string tokens_of(uint64_t block) {
  std::string bytes(kBlockTokens * sizeof(uint32_t), '\0');
  for (size_t i = 0; i < kBlockTokens; ++i) {
    const auto token = static_cast<uint32_t>(block * kBlockTokens + i);
    std::memcpy(&bytes[i * sizeof(token)], &token, sizeof(token));
  }
  return bytes;
}

std::string name_of(uint64_t block) {
  return fmt::format("{:02x}/{:016x}.kv", block % 256, block * 0x9e3779b97f4a7c15);
}

void set(const std::string& path, const char* xattr, const std::string& value) {
  must(::setxattr(path.c_str(), xattr, value.data(), value.size(), 0), "setxattr", path);
}

// One exchange with the control file that is open: the answer's first line.
std::string ask(int file, const std::string& query, std::string& buffer) {
  for (size_t at = 0; at < query.size();)
    at += static_cast<size_t>(must(::write(file, query.data() + at, query.size() - at), "write", "match"));
  const auto bytes = static_cast<size_t>(must(::read(file, buffer.data(), buffer.size()), "read", "match"));
  return buffer.substr(0, std::min(buffer.find('\n'), bytes));
}

std::string binary_query(const Blocks& blocks) {
  const uint32_t head[] = {1, 0, static_cast<uint32_t>(blocks.size() * kBlockTokens)};
  std::string query = "KVQ1";
  query.append(reinterpret_cast<const char*>(head), sizeof(head));
  for (const uint64_t block : blocks) query += tokens_of(block);
  return query;
}

double us_each(uint64_t begin_ns, uint64_t count) {
  return static_cast<double>(now_ns() - begin_ns) / 1e3 / static_cast<double>(std::max<uint64_t>(count, 1));
}

// Each block is an entry that follows the block before it in the request that had it first.
void store_blocks(const Kvcachefs& mount, const clients::Trace& trace, std::unordered_set<uint64_t>& known) {
  for (const Blocks& request : trace.requests) {
    for (size_t i = 0; i < request.size() && known.size() < kMostBlocks; ++i) {
      if (!known.insert(request[i]).second) continue;
      const std::string path = mount.directory() + "/" + name_of(request[i]);
      const UniqueFd file(static_cast<int>(
          must(::open((path + ".tmp").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644), "open", path)));
      set(path + ".tmp", "user.kv.tokens", tokens_of(request[i]));
      if (i > 0) set(path + ".tmp", "user.kv.parent", name_of(request[i - 1]));
      must(::rename((path + ".tmp").c_str(), path.c_str()), "rename", path);
    }
    throw_if_stopped();
  }
}

void prefix_rows(Bench& bench, const Kvcachefs& mount) {
  const auto trace =
      clients::read_trace(clients::trace_path(KVCACHEFS_SOURCE_DIR), bench.scale.quick ? 20 : 2'000);
  if (!trace) return bench.report.note("No row of prefixes: " + trace.error().message + ".");
  for (uint64_t directory = 0; directory < 256; ++directory)
    must(::mkdir(fmt::format("{}/{:02x}", mount.directory(), directory).c_str(), 0755), "mkdir", "");
  std::unordered_set<uint64_t> known;
  store_blocks(mount, *trace, known);
  const UniqueFd file(
      static_cast<int>(must(::open(mount.control("match").c_str(), O_RDWR | O_CLOEXEC), "open", "match")));
  std::string buffer(1 << 20, '\0');
  std::vector<std::string> queries;
  for (const Blocks& request : trace->requests) queries.push_back(binary_query(request));
  uint64_t matched = 0, in_process = 0, by_stat = 0;
  std::vector<double> ours, walks, stats;
  for (unsigned round = 0; round < bench.scale.rounds; ++round) {
    uint64_t begin_ns = now_ns();
    for (const std::string& query : queries)
      matched += static_cast<uint64_t>(std::stoull(ask(file.get(), query, buffer).substr(15)));
    ours.push_back(us_each(begin_ns, queries.size()));
    begin_ns = now_ns();
    for (const Blocks& request : trace->requests)
      for (const uint64_t block : request) {
        if (!known.contains(block)) break;
        ++in_process;
      }
    walks.push_back(us_each(begin_ns, queries.size()));
    begin_ns = now_ns();
    for (const Blocks& request : trace->requests)
      for (const uint64_t block : request) {
        struct stat status {};
        if (::stat((mount.directory() + "/" + name_of(block)).c_str(), &status) != 0) break;
        ++by_stat;
      }
    stats.push_back(us_each(begin_ns, queries.size()));
  }
  if (matched != in_process * kBlockTokens || by_stat != in_process)
    throw BenchError(
        fmt::format("{} tokens matched, {} blocks known, {} found by stat", matched, in_process, by_stat));
  const double blocks =
      static_cast<double>(in_process) / bench.scale.rounds / static_cast<double>(queries.size());
  const std::string what =
      fmt::format("longest prefix, {} entries, {:.0f} blocks of 16 tokens a prompt", known.size(), blocks);
  bench.report.add({what, "a walk of a hash table in the process", fmt::format("{:.0f} µs", median(ours)),
                    fmt::format("{:.2f} µs", median(walks)), median(walks) / median(ours)});
  bench.report.add({what, "a stat of each block", fmt::format("{:.0f} µs", median(ours)),
                    fmt::format("{:.0f} µs", median(stats)), median(stats) / median(ours)});
  bench.report.add({"index: bytes a block of 16 tokens that is an entry", "", "", "",
                    mount.pool_stat("index_bytes") / mount.pool_stat("indexed_blocks")});
}

void name_rows(Bench& bench, const Kvcachefs& mount) {
  const uint64_t count = bench.scale.quick ? 100 : kNames;
  std::string query = "names\n";
  std::vector<std::string> paths;
  for (uint64_t number = 0; number < count; ++number) {
    const std::string name = fmt::format("{0:016x}{0:016x}{0:016x}.kv", number * 0x9e3779b97f4a7c15);
    store_entry(mount.directory(), name, payload(4096));
    query += name + "\n";
    paths.push_back(mount.directory() + "/" + name);
  }
  std::string buffer(1 << 16, '\0');
  std::vector<double> ours, theirs;
  for (unsigned round = 0; round < bench.scale.rounds; ++round) {
    uint64_t begin_ns = now_ns();
    const UniqueFd file(
        static_cast<int>(must(::open(mount.control("match").c_str(), O_RDWR | O_CLOEXEC), "open", "match")));
    const std::string head = ask(file.get(), query, buffer);
    ours.push_back(us_each(begin_ns, 1) / 1e3);
    if (!head.starts_with(fmt::format("present={} ", count))) throw BenchError("names: " + head);
    begin_ns = now_ns();
    for (const std::string& path : paths) {
      struct stat status {};
      must(::stat(path.c_str(), &status), "stat", path);
    }
    theirs.push_back(us_each(begin_ns, 1) / 1e3);
  }
  bench.report.add({fmt::format("how many of {} names are there, ms", count),
                    "as many stats, which the kernel answers", fmt::format("{:.1f} ms", median(ours)),
                    fmt::format("{:.1f} ms", median(theirs)), median(ours), Row::Bound::kAtMost, 10});
}

// A store of a block with its tokens, beside the same with attributes that are not looked at.
void cost_rows(Bench& bench, const Kvcachefs& mount) {
  const auto store = [&](const std::string& prefix, uint64_t first) {
    const uint64_t begin_ns = now_ns();
    for (uint64_t number = first; number < first + kStores; ++number) {
      const std::string path = fmt::format("{}/store-{}", mount.directory(), number % kStores);
      {
        const UniqueFd file(static_cast<int>(
            must(::open((path + ".tmp").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644), "open", path)));
        must(::write(file.get(), payload(kStoreBytes).data(), kStoreBytes), "write", path);
      }
      set(path + ".tmp", (prefix + "tokens").c_str(), tokens_of(1'000'000 + number));
      set(path + ".tmp", (prefix + "agent").c_str(), "bench");
      must(::rename((path + ".tmp").c_str(), path.c_str()), "rename", path);
    }
    return us_each(begin_ns, kStores);
  };
  std::vector<double> ours, theirs, ratios;
  for (unsigned round = 0; round < bench.scale.rounds; ++round) {
    theirs.push_back(store("user.x.", round * kStores));
    ours.push_back(store("user.kv.", round * kStores));
    if (round > 0) ratios.push_back(ours.back() / theirs.back());
  }
  bench.report.add({"a store of 2 MiB with its tokens and agent", "the same attributes, not indexed",
                    fmt::format("{:.0f} µs", median(ours)), fmt::format("{:.0f} µs", median(theirs)),
                    median(ratios), bench.scale.quick ? Row::Bound::kNone : Row::Bound::kAtMost, 1.05});
}

}  // namespace

void match_rows(Bench& bench) {
  const Kvcachefs mount(bench.work, "match", "size=2G");
  cost_rows(bench, mount);
  name_rows(bench, mount);
  prefix_rows(bench, mount);
}

}  // namespace kvcachefs::bench
