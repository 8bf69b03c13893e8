// The cost of the disk tier's catalog: entries committed in batches, and the reading of the whole catalog at
// a start. The disk is that of KVCACHEFS_BENCH_DIR (/var/tmp if that is not set). KVCACHEFS_BENCH_ENTRIES
// (100,000) is the number of entries in the catalog for the commits into a large one and for the loads.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs {
namespace {

constexpr size_t kFillBatch = 4096;

int64_t entries_wanted() {
  const char* text = std::getenv("KVCACHEFS_BENCH_ENTRIES");
  return text == nullptr ? 100'000 : std::atoll(text);
}

class Place {
 public:
  Place() {
    const char* parent = std::getenv("KVCACHEFS_BENCH_DIR");
    path_ = std::string(parent == nullptr ? "/var/tmp" : parent) + "/kv-catalog-bench-XXXXXX";
    KVCACHEFS_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~Place() { std::filesystem::remove_all(path_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  std::unique_ptr<Catalog> open() const {
    auto opened = Catalog::open(path_ + "/catalog");
    KVCACHEFS_CHECK(opened.has_value());
    return std::move(*opened);
  }

 private:
  std::string path_;
};

// The names are like those of engines: a hash in hexadecimal digits, all in one directory.
void add_entry(std::vector<CatalogChange>& batch, uint64_t id) {
  const uint64_t hash = id * 0x9e3779b97f4a7c15;
  CatalogNode node;
  node.id = id;
  node.mode = S_IFREG | 0644;
  node.modified = {1'700'000'000, 5};
  batch.emplace_back(PutNode{std::move(node)});
  batch.emplace_back(PutName{kCatalogRoot, fmt::format("{:016x}{:016x}.safetensors", hash, ~hash), id});
  batch.emplace_back(PutContent{
      id, {.size_bytes = 2 << 20, .checksum = {hash, id}, .version = 1, .extents = {{id * 32, 32}}}});
}

uint64_t commit_entries(Catalog& catalog, uint64_t id, size_t count) {
  std::vector<CatalogChange> batch;
  batch.reserve(count * 3);
  for (const uint64_t end = id + count; id < end; ++id) add_entry(batch, id);
  KVCACHEFS_CHECK(catalog.commit(batch).has_value());
  return id;
}

// The catalog is filled once for all benchmarks that need it, at the first of them, and never emptied. A run
// of only the other benchmarks does not pay for it.
const Place& large_place() {
  static const Place place;
  static const bool filled = [] {
    const auto catalog = place.open();
    for (uint64_t id = 2; id < static_cast<uint64_t>(entries_wanted());)
      id = commit_entries(*catalog, id, kFillBatch);
    return true;
  }();
  KVCACHEFS_CHECK(filled);
  return place;
}

void commit_into(benchmark::State& state, Catalog& catalog) {
  uint64_t id = catalog.highest_id() + 1;
  const auto batch = static_cast<size_t>(state.range(0));
  for (auto _ : state) id = commit_entries(catalog, id, batch);
  state.SetItemsProcessed(static_cast<int64_t>(batch) * state.iterations());
}

void catalog_commit_empty(benchmark::State& state) {
  const Place place;
  commit_into(state, *place.open());
}

void catalog_commit_large(benchmark::State& state) {
  commit_into(state, *large_place().open());
}

void catalog_load(benchmark::State& state) {
  struct Count : CatalogVisitor {
    void node(const CatalogNode&, std::span<const CatalogName>, const CatalogContent*) override { ++nodes; }
    void lost(CatalogLoss, uint64_t, std::string_view) override { KVCACHEFS_CHECK(false); }
    int64_t nodes = 0;
  } count;
  const Place& place = large_place();
  for (auto _ : state) {
    const auto catalog = place.open();
    KVCACHEFS_CHECK(catalog->load(count).has_value());
  }
  state.SetItemsProcessed(count.nodes);
}

BENCHMARK(catalog_commit_empty)->Arg(1)->Arg(64)->Arg(1024)->Arg(4096)->UseRealTime();
BENCHMARK(catalog_load)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(catalog_commit_large)->Arg(1)->Arg(64)->Arg(1024)->Arg(4096)->UseRealTime();

}  // namespace
}  // namespace kvcachefs
