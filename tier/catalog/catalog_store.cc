#include "tier/catalog/catalog_store.h"

#include <fmt/format.h>
#include <lmdb.h>

#include <algorithm>
#include <cerrno>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/risky_read.h"
#include "base/size.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "tier/blocks.h"
#include "tier/catalog/catalog_records.h"

namespace kvcachefs {
namespace {

constexpr std::array<const char*, kCatalogTables> kTableNames{"nodes", "names", "contents", "settings"};
// MDB_NOTLS: a read transaction belongs to no thread. MDB_NOLOCK: see the header.
constexpr unsigned kFlags = MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOTLS;
constexpr uint64_t kMapStepBytes = 1 << 20;

size_t index_of(CatalogTable table) {
  return static_cast<size_t>(table);
}

MDB_val value_of(std::string_view bytes) {
  return {bytes.size(), const_cast<char*>(bytes.data())};
}

std::string_view view_of(const MDB_val& value) {
  return {static_cast<const char*>(value.mv_data), value.mv_size};
}

std::unexpected<Error> failed_at(const std::string& path, const Error& error) {
  return fail(error.code, fmt::format("{}: {}", path, mdb_strerror(error.code)));
}

Result<void> sync_directory(const std::string& path) {
  Result<UniqueFd> directory = sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
  Result<void> synced = directory ? sys::sync_whole(directory->get()) : pass(directory);
  if (!synced) return failed_at(path, synced.error());
  return synced;
}

int errno_of(int rc) {
  switch (rc) {
    case MDB_MAP_FULL:
      return ENOSPC;
    case MDB_TXN_FULL:
    case MDB_CURSOR_FULL:
    case MDB_PAGE_FULL:
      return E2BIG;
    case MDB_BAD_VALSIZE:
      return EINVAL;
    default:
      return rc > 0 ? rc : EUCLEAN;
  }
}

}  // namespace

// --- CatalogTransaction ---

CatalogTransaction::~CatalogTransaction() {
  if (transaction_ == nullptr) return;
  for (MDB_cursor* cursor : cursors_)
    if (cursor != nullptr) mdb_cursor_close(cursor);
  mdb_txn_abort(transaction_);
}

std::unexpected<Error> CatalogTransaction::failed(int rc) {
  map_full_ = map_full_ || rc == MDB_MAP_FULL;
  return fail(errno_of(rc), mdb_strerror(rc));
}

Result<MDB_cursor*> CatalogTransaction::cursor(CatalogTable table) {
  MDB_cursor*& cursor = cursors_[index_of(table)];
  if (cursor == nullptr) {
    if (const int rc = mdb_cursor_open(transaction_, tables_[index_of(table)], &cursor); rc != 0)
      return failed(rc);
  }
  return cursor;
}

Result<std::optional<std::string_view>> CatalogTransaction::get(CatalogTable table, std::string_view key) {
  count_step();
  Result<MDB_cursor*> at = cursor(table);
  if (!at) return pass(at);
  MDB_val wanted = value_of(key), value{};
  const int rc = mdb_cursor_get(*at, &wanted, &value, MDB_SET_KEY);
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) return failed(rc);
  return view_of(value);
}

Result<std::optional<std::string_view>> CatalogTransaction::look_up(CatalogTable table,
                                                                    std::string_view key) {
  count_step();
  MDB_val wanted = value_of(key), value{};
  const int rc = mdb_get(transaction_, tables_[index_of(table)], &wanted, &value);
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) return failed(rc);
  return view_of(value);
}

Result<void> CatalogTransaction::put(CatalogTable table, std::string_view key, std::string_view value) {
  count_step();
  Result<MDB_cursor*> at = cursor(table);
  if (!at) return pass(at);
  MDB_val wanted = value_of(key), bytes = value_of(value);
  if (const int rc = mdb_cursor_put(*at, &wanted, &bytes, 0); rc != 0) return failed(rc);
  return {};
}

Result<void> CatalogTransaction::erase(CatalogTable table, std::string_view key) {
  count_step();
  Result<MDB_cursor*> at = cursor(table);
  if (!at) return pass(at);
  MDB_val wanted = value_of(key), value{};
  int rc = mdb_cursor_get(*at, &wanted, &value, MDB_SET_KEY);
  if (rc == 0) rc = mdb_cursor_del(*at, 0);
  if (rc != 0 && rc != MDB_NOTFOUND) return failed(rc);
  return {};
}

Result<void> CatalogTransaction::clear(CatalogTable table) {
  if (const int rc = mdb_drop(transaction_, tables_[index_of(table)], 0); rc != 0) return failed(rc);
  return {};
}

Result<uint64_t> CatalogTransaction::records_in(CatalogTable table) {
  MDB_stat facts{};
  if (const int rc = mdb_stat(transaction_, tables_[index_of(table)], &facts); rc != 0) return failed(rc);
  return facts.ms_entries;
}

Result<void> CatalogTransaction::Scan::take(int rc, std::string_view key, std::string_view value) {
  valid_ = rc == 0;
  if (rc != 0 && rc != MDB_NOTFOUND) return transaction_->failed(rc);
  key_ = key;
  value_ = value;
  return {};
}

Result<void> CatalogTransaction::Scan::next() {
  count_step();
  fault_point("record read");
  MDB_val key{}, value{};
  const int rc = mdb_cursor_get(cursor_, &key, &value, MDB_NEXT);
  return take(rc, view_of(key), view_of(value));
}

Result<CatalogTransaction::Scan> CatalogTransaction::scan(CatalogTable table, std::string_view from) {
  Result<MDB_cursor*> at = cursor(table);
  if (!at) return pass(at);
  Scan scan(this, *at);
  MDB_val key = value_of(from), value{};
  const int rc = mdb_cursor_get(*at, &key, &value, from.empty() ? MDB_FIRST : MDB_SET_RANGE);
  if (Result<void> taken = scan.take(rc, view_of(key), view_of(value)); !taken) return pass(taken);
  return scan;
}

Result<std::optional<std::string_view>> CatalogTransaction::last_key(CatalogTable table,
                                                                     const Usable& usable) {
  Result<MDB_cursor*> at = cursor(table);
  if (!at) return pass(at);
  MDB_val key{}, value{};
  int rc = mdb_cursor_get(*at, &key, &value, MDB_LAST);
  while (rc == 0 && !usable(view_of(key), view_of(value))) rc = mdb_cursor_get(*at, &key, &value, MDB_PREV);
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) return failed(rc);
  return view_of(key);
}

int CatalogTransaction::commit() {
  for (MDB_cursor*& cursor : cursors_)
    if (cursor != nullptr) mdb_cursor_close(std::exchange(cursor, nullptr));
  const int rc = mdb_txn_commit(std::exchange(transaction_, nullptr));
  map_full_ = map_full_ || rc == MDB_MAP_FULL;
  return rc;
}

// --- CatalogStore ---

Error CatalogStore::explained(int rc, std::string_view what) const {
  return Error{errno_of(rc), fmt::format("{}: {}: {}", directory_, what, mdb_strerror(rc))};
}

Result<std::unique_ptr<CatalogStore>> CatalogStore::open(const std::string& directory,
                                                         const Catalog::Options& options) {
  std::unique_ptr<CatalogStore> store(new CatalogStore(directory, options.map_bytes));
  const RiskyRead risk(store->directory_);
  if (options.create) {
    Result<void> made = sys::make_directory_at(AT_FDCWD, directory.c_str(), 0700);
    if (!made && made.error().code != EEXIST) return failed_at(directory, made.error());
    if (made && !(made = sync_directory(directory + "/.."))) return pass(made);
  }
  if (Result<void> locked = store->lock(); !locked) return pass(locked);
  const Result<struct stat> present = sys::stat_at(AT_FDCWD, store->file_.c_str());
  if (!present && present.error().code != ENOENT) return failed_at(store->file_, present.error());
  if (!present && !options.create) return fail(ENOENT, directory + ": no catalog is here");
  if (!present)
    if (Result<void> made = store->make_file(); !made) return pass(made);
  if (Result<void> opened = store->open_environment(store->file_, false); !opened) return pass(opened);
  return store;
}

CatalogStore::~CatalogStore() {
  close_environment();
}

Result<void> CatalogStore::lock() {
  const std::string name = directory_ + "/lock";
  Result<UniqueFd> file = sys::open_at(AT_FDCWD, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!file) return failed_at(name, file.error());
  if (const Result<void> locked = sys::lock_whole(file->get()); !locked) {
    if (locked.error().code == EWOULDBLOCK)
      return fail(EBUSY, directory_ + ": the catalog is in use by another process");
    return failed_at(name, locked.error());
  }
  lock_ = std::move(*file);
  return {};
}

// The file is made under another name until it is whole, so a crash in between leaves no half-made catalog.
Result<void> CatalogStore::make_file() {
  const std::string unfinished = file_ + ".new";
  (void)sys::unlink_at(AT_FDCWD, unfinished.c_str(), 0);
  if (Result<void> made = open_environment(unfinished, true); !made) return pass(made);
  close_environment();
  Result<void> named = sys::rename_at(AT_FDCWD, unfinished.c_str(), AT_FDCWD, file_.c_str(), 0);
  if (!named) return failed_at(file_, named.error());
  return sync_directory(directory_);
}

Result<void> CatalogStore::open_environment(const std::string& file, bool create) {
  uint64_t file_bytes = 0;
  if (const Result<struct stat> facts = sys::stat_at(AT_FDCWD, file.c_str()); facts)
    file_bytes = size_of(*facts);
  // The map is larger than the file from the start, because growing costs a transaction that runs twice.
  map_bytes_ = rounded_up(std::max(map_bytes_, file_bytes * 2), kMapStepBytes);
  int rc = mdb_env_create(&environment_);
  if (rc != 0) return std::unexpected(explained(rc, "LMDB"));
  rc = mdb_env_set_maxdbs(environment_, kCatalogTables);
  if (rc == 0) rc = mdb_env_set_mapsize(environment_, map_bytes_);
  if (rc == 0) rc = mdb_env_set_assert(environment_, [](MDB_env*, const char*) { RiskyRead::note_death(); });
  if (rc == 0) rc = mdb_env_open(environment_, file.c_str(), kFlags, 0600);
  if (rc == 0) rc = extend(file, file_bytes);
  if (rc == 0) rc = open_tables(create);
  if (rc == 0) return create ? Result<void>{} : check_format();
  const Error error = explained(rc, "the catalog cannot be opened");
  close_environment();
  return std::unexpected(error);
}

// LMDB reads pages straight from the map, so a page beyond the end of a truncated file would be a SIGBUS.
// Extended with zeros, the file gives an error instead.
int CatalogStore::extend(const std::string& file, uint64_t file_bytes) {
  MDB_envinfo info{};
  MDB_stat stat{};
  int rc = mdb_env_info(environment_, &info);
  if (rc == 0) rc = mdb_env_stat(environment_, &stat);
  const uint64_t needed = (uint64_t{info.me_last_pgno} + 1) * stat.ms_psize;
  if (rc != 0 || file_bytes >= needed) return rc;
  const Result<UniqueFd> opened = sys::open_at(AT_FDCWD, file.c_str(), O_RDWR);
  if (!opened) return opened.error().code;
  const Result<void> extended = sys::truncate(opened->get(), needed);
  return extended ? 0 : extended.error().code;
}

int CatalogStore::open_tables(bool create) {
  MDB_txn* transaction = nullptr;
  int rc = mdb_txn_begin(environment_, nullptr, create ? 0 : MDB_RDONLY, &transaction);
  if (rc != 0) return rc;
  const unsigned flags = create ? MDB_CREATE : 0;
  // The settings come first, because a newer format may have other tables.
  rc = mdb_dbi_open(transaction, kTableNames.back(), flags, &tables_.back());
  for (size_t table = 0; table + 1 < kCatalogTables && rc == 0; ++table) {
    rc = mdb_dbi_open(transaction, kTableNames[table], flags, &tables_[table]);
    if (rc == MDB_NOTFOUND) rc = 0, tables_[table] = 0;  // check_format() reports it
  }
  if (rc == 0 && create) {
    const std::string format = std::to_string(records::kFirstFormat);
    MDB_val key = value_of(records::kFormatSetting), value = value_of(format);
    rc = mdb_put(transaction, tables_.back(), &key, &value, 0);
  }
  if (rc == 0) return mdb_txn_commit(transaction);  // the tables stay open
  mdb_txn_abort(transaction);
  return rc;
}

Result<void> CatalogStore::check_format() {
  Result<void> checked = read([&](CatalogTransaction& transaction) -> Result<void> {
    auto value = transaction.get(CatalogTable::kSettings, records::kFormatSetting);
    if (!value) return pass(value);
    const Result<uint64_t> format = parse_number(value->value_or(""));
    if (!format) return fail(EUCLEAN, directory_ + ": the catalog's format is not readable");
    if (*format > records::kFormat)
      return fail(ENOTSUP, fmt::format("{}: the catalog has format {}, newer than {}, which is what this "
                                       "program knows",
                                       directory_, *format, records::kFormat));
    if (std::ranges::count(tables_, 0u) != 0)
      return fail(EUCLEAN, directory_ + ": the catalog lacks a table");
    return {};
  });
  if (!checked) close_environment();
  return checked;
}

void CatalogStore::close_environment() {
  if (environment_ != nullptr) mdb_env_close(std::exchange(environment_, nullptr));
}

Result<std::unique_ptr<CatalogTransaction>> CatalogStore::begin(bool read_only) {
  for (int reopened = 0;; ++reopened) {
    if (environment_ == nullptr)
      if (Result<void> opened = open_environment(file_, false); !opened) return pass(opened);
    MDB_txn* transaction = nullptr;
    const int rc = mdb_txn_begin(environment_, nullptr, read_only ? MDB_RDONLY : 0, &transaction);
    if (rc == 0) return std::make_unique<CatalogTransaction>(transaction, tables_);
    // MDB_PANIC: the last page of a commit could not be written. LMDB goes by what it reads when it is opened
    // again.
    if (rc == MDB_PANIC && reopened == 0)
      close_environment();
    else if (rc != MDB_MAP_RESIZED || mdb_env_set_mapsize(environment_, 0) != 0)
      return std::unexpected(explained(rc, "no transaction can begin"));
  }
}

Result<void> CatalogStore::read(const Body& body) {
  const RiskyRead risk(directory_);
  auto transaction = begin(true);
  if (!transaction) return pass(transaction);
  return body(**transaction);
}

Result<void> CatalogStore::write(const Body& body) {
  const RiskyRead risk(directory_);
  for (;;) {
    if (std::optional<Result<void>> written = attempt(body)) return *written;
    if (Result<void> grown = grow(); !grown) return grown;
  }
}

std::optional<Result<void>> CatalogStore::attempt(const Body& body) {
  auto transaction = begin(false);
  if (!transaction) return pass(transaction);
  const size_t number = mdb_txn_id((*transaction)->transaction_);
  Result<void> done = body(**transaction);
  const int rc = done ? (*transaction)->commit() : 0;
  if ((!done || rc != 0) && (*transaction)->map_full_) return std::nullopt;
  if (!done || rc == 0) return done;
  const Error error = explained(rc, "the changes cannot be written");
  transaction->reset();
  if (!took_effect(number)) return std::unexpected(error);
  return make_durable(error);
}

// took_effect() is true if a commit counts although its last page, the one that makes it count, was reported
// as not written. LMDB then writes the old page back; if that fails too, later reads may see the commit.
bool CatalogStore::took_effect(size_t number) {
  auto now = begin(true);
  return now && mdb_txn_id((*now)->transaction_) >= number;
}

Result<void> CatalogStore::make_durable(const Error& error) {
  auto transaction = begin(false);
  if (!transaction) return std::unexpected(error);
  const auto format = (*transaction)->get(CatalogTable::kSettings, records::kFormatSetting);
  if (!format || !*format) return std::unexpected(error);
  const Result<void> changed =
      (*transaction)->put(CatalogTable::kSettings, records::kFormatSetting, std::string(**format));
  if (!changed || (*transaction)->commit() != 0) return std::unexpected(error);
  return {};
}

Result<void> CatalogStore::grow() {
  if (const int rc = mdb_env_set_mapsize(environment_, map_bytes_ * 2); rc != 0)
    return std::unexpected(explained(rc, "the map cannot grow"));
  map_bytes_ *= 2;
  log_line(LogLevel::kDebug,
           fmt::format("{}: the catalog's map is {} now", directory_, format_size(map_bytes_)));
  return {};
}

}  // namespace kvcachefs
