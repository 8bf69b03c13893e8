#include "tier/catalog/catalog.h"

#include <algorithm>
#include <cerrno>

#include "base/fault_point.h"
#include "base/mutex.h"
#include "tier/catalog/catalog_batch.h"
#include "tier/catalog/catalog_load.h"
#include "tier/catalog/catalog_records.h"
#include "tier/catalog/catalog_store.h"

namespace kvcachefs {
namespace {

constexpr size_t kSettingNameMaxBytes = 500;  // LMDB's keys end at 511
constexpr size_t kSettingValueMaxBytes = 1 << 20;

class StoredCatalog final : public Catalog {
 public:
  StoredCatalog(std::unique_ptr<CatalogStore> store, uint64_t highest_id)
      : store_(std::move(store)), highest_id_(highest_id) {}

  Result<std::vector<Extent>> commit(std::span<const CatalogChange> changes) override;
  Result<void> load(CatalogVisitor& visitor, Losses losses) override;
  uint64_t highest_id() override {
    MutexLock lock(mutex_);
    return highest_id_;
  }
  Result<uint64_t> names() override;
  Result<std::optional<std::string>> setting(std::string_view name) override;
  Result<void> put_setting(std::string_view name, std::string_view value) override;
  Result<void> clear() override;

 private:
  Mutex mutex_;
  const std::unique_ptr<CatalogStore> store_ GUARDED_BY(mutex_);
  uint64_t highest_id_ GUARDED_BY(mutex_);
};

Result<std::vector<Extent>> StoredCatalog::commit(std::span<const CatalogChange> changes) {
  if (const int error = injected_error("catalog commit")) return fail(error, "catalog");
  if (changes.empty()) return std::vector<Extent>{};
  MutexLock lock(mutex_);
  std::optional<CatalogBatch> batch;
  Result<void> written = store_->write([&, highest = highest_id_](CatalogTransaction& transaction) {
    batch.emplace(transaction, highest);
    return batch->apply(changes);
  });
  // After an error too: the catalog may hold changes that LMDB could neither write in full nor take back.
  if (batch) highest_id_ = batch->highest_id();
  if (!written) return pass(written);
  return batch->freed();
}

Result<void> StoredCatalog::load(CatalogVisitor& visitor, Losses losses) {
  MutexLock lock(mutex_);
  CatalogLoad::Repair repair;
  Result<void> visited = store_->read([&](CatalogTransaction& transaction) {
    CatalogLoad load(transaction, visitor);
    Result<void> run = load.run();
    if (run) repair = load.take_repair();
    return run;
  });
  if (!visited || losses == Losses::kKeep || repair.empty()) return visited;
  return store_->write([&](CatalogTransaction& transaction) { return repair.apply(transaction); });
}

Result<uint64_t> StoredCatalog::names() {
  MutexLock lock(mutex_);
  uint64_t result = 0;
  auto read = store_->read([&](CatalogTransaction& transaction) -> Result<void> {
    auto count = transaction.records_in(CatalogTable::kNames);
    if (!count) return pass(count);
    result = *count;
    return {};
  });
  if (!read) return pass(read);
  return result;
}

Result<std::optional<std::string>> StoredCatalog::setting(std::string_view name) {
  if (name.empty() || name.size() > kSettingNameMaxBytes) return std::nullopt;
  MutexLock lock(mutex_);
  std::optional<std::string> value;
  Result<void> read = store_->read([&](CatalogTransaction& transaction) -> Result<void> {
    auto stored = transaction.get(CatalogTable::kSettings, name);
    if (!stored) return pass(stored);
    if (*stored) value = std::string(**stored);
    return {};
  });
  if (!read) return pass(read);
  return value;
}

Result<void> StoredCatalog::put_setting(std::string_view name, std::string_view value) {
  if (name.empty() || name.size() > kSettingNameMaxBytes || value.size() > kSettingValueMaxBytes ||
      name.starts_with(records::kOwnSettings))
    return fail(EINVAL, "a setting that no catalog can hold");
  MutexLock lock(mutex_);
  return store_->write(
      [&](CatalogTransaction& transaction) { return transaction.put(CatalogTable::kSettings, name, value); });
}

Result<void> StoredCatalog::clear() {
  MutexLock lock(mutex_);
  return store_->write([](CatalogTransaction& transaction) -> Result<void> {
    for (const CatalogTable table : {CatalogTable::kNodes, CatalogTable::kNames, CatalogTable::kContents})
      if (Result<void> cleared = transaction.clear(table); !cleared) return cleared;
    return {};
  });
}

}  // namespace

Result<std::unique_ptr<Catalog>> Catalog::open(const std::string& directory, const Options& options) {
  Result<std::unique_ptr<CatalogStore>> store = CatalogStore::open(directory, options);
  if (!store) return pass(store);
  uint64_t highest_id = kCatalogRoot;
  Result<void> read = (*store)->read([&](CatalogTransaction& transaction) -> Result<void> {
    // A damaged node is passed over: a load drops it, and its key may be any number.
    auto key =
        transaction.last_key(CatalogTable::kNodes, [](std::string_view stored_key, std::string_view record) {
          return records::node_facts(records::id_of(stored_key).value_or(0), record).has_value();
        });
    if (!key) return pass(key);
    if (*key) highest_id = std::max(highest_id, records::id_of(**key).value_or(0));
    return {};
  });
  if (!read) return pass(read);
  return std::make_unique<StoredCatalog>(std::move(*store), highest_id);
}

}  // namespace kvcachefs
