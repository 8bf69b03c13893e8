// The catalog's tables as bytes: LMDB behind four tables, which grows its map as needed and serves one
// process at a time. Only catalog_store.cc includes lmdb.h.
//
// Threads: one at a time (the Catalog's Mutex). LMDB's own locks are off: the directory's lock file keeps
// other processes out, and no read may be open while a write runs. Failure: a failed write has changed
// nothing. LMDB's own codes become errnos: EUCLEAN for a damaged file, E2BIG for a transaction beyond its
// limits.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/catalog/catalog.h"

struct MDB_env;
struct MDB_txn;
struct MDB_cursor;

namespace kvcachefs {

enum class CatalogTable : uint8_t { kNodes, kNames, kContents, kSettings };
constexpr size_t kCatalogTables = 4;

// The destructor aborts a transaction that the store has not committed. Strings that it returns are valid
// until the next change or its end.
class CatalogTransaction {
 public:
  CatalogTransaction(MDB_txn* transaction, const std::array<unsigned, kCatalogTables>& tables)
      : transaction_(transaction), tables_(tables) {}
  CatalogTransaction(const CatalogTransaction&) = delete;
  CatalogTransaction& operator=(const CatalogTransaction&) = delete;
  ~CatalogTransaction();

  Result<std::optional<std::string_view>> get(CatalogTable table, std::string_view key);
  // The same, but a scan of the table goes on.
  Result<std::optional<std::string_view>> look_up(CatalogTable table, std::string_view key);
  Result<void> put(CatalogTable table, std::string_view key, std::string_view value);
  Result<void> erase(CatalogTable table, std::string_view key);  // erasing a missing key succeeds
  Result<void> clear(CatalogTable table);
  Result<uint64_t> records_in(CatalogTable table);

  // The records of one table from a key on, in order; the table must not change meanwhile.
  class Scan {
   public:
    bool valid() const { return valid_; }
    std::string_view key() const { return key_; }
    std::string_view value() const { return value_; }
    Result<void> next();

   private:
    friend class CatalogTransaction;
    Scan(CatalogTransaction* transaction, MDB_cursor* cursor) : transaction_(transaction), cursor_(cursor) {}
    Result<void> take(int rc, std::string_view key, std::string_view value);

    CatalogTransaction* transaction_;
    MDB_cursor* cursor_;
    bool valid_ = false;
    std::string_view key_;
    std::string_view value_;
  };
  // A scan uses the table's only cursor: the next use of the table ends the scan.
  Result<Scan> scan(CatalogTable table, std::string_view from = {});
  // The last key for which `usable` is true.
  using Usable = std::function<bool(std::string_view key, std::string_view value)>;
  Result<std::optional<std::string_view>> last_key(CatalogTable table, const Usable& usable);

 private:
  friend class CatalogStore;
  Result<MDB_cursor*> cursor(CatalogTable table);
  std::unexpected<Error> failed(int rc);
  int commit();  // answers LMDB's code; the transaction is over in any case

  MDB_txn* transaction_;
  std::array<unsigned, kCatalogTables> tables_;
  std::array<MDB_cursor*, kCatalogTables> cursors_{};
  bool map_full_ = false;
};

class CatalogStore {
 public:
  static Result<std::unique_ptr<CatalogStore>> open(const std::string& directory,
                                                    const Catalog::Options& options);
  ~CatalogStore();

  // write() runs the body and commits its changes durably. When the map has to grow, the body runs again from
  // the start, so it must begin afresh each time.
  using Body = std::function<Result<void>(CatalogTransaction&)>;
  Result<void> write(const Body& body);
  Result<void> read(const Body& body);

 private:
  CatalogStore(std::string directory, uint64_t map_bytes)
      : directory_(std::move(directory)), file_(directory_ + "/data.mdb"), map_bytes_(map_bytes) {}

  Result<void> lock();
  Result<void> make_file();
  Result<void> open_environment(const std::string& file, bool create);
  // These two answer LMDB's codes.
  int extend(const std::string& file, uint64_t file_bytes);
  int open_tables(bool create);
  Result<void> check_format();
  void close_environment();
  Result<std::unique_ptr<CatalogTransaction>> begin(bool read_only);
  std::optional<Result<void>> attempt(const Body& body);  // nothing: the map is full
  bool took_effect(size_t number);
  Result<void> make_durable(const Error& error);
  Result<void> grow();
  Error explained(int rc, std::string_view what) const;

  const std::string directory_;
  const std::string file_;
  uint64_t map_bytes_;
  UniqueFd lock_;
  MDB_env* environment_ = nullptr;
  std::array<unsigned, kCatalogTables> tables_{};
};

}  // namespace kvcachefs
