#include "fs/control/index_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/sys.h"
#include "fs/stored_xattrs.h"
#include "tier/index/metadata.h"

namespace kvcachefs {
namespace {

// The inode of a file that the caller may write; no link is followed.
Result<uint64_t> entry_of(const ControlledPool& target, ReadableTree& tree, const IndexRecord& record) {
  const bool restoring = target.pool->disk().restoring();
  const auto file = tree.look_up(record.name);
  if (!file && file.error().code == ENOENT && restoring)
    return fail(EBUSY, "there is no such entry, but names are still being brought back");
  if (!file) return fail(file.error().code, "there is no such entry that the caller may look up");
  if (!S_ISREG(file->st_mode)) return fail(EINVAL, "this is no entry");
  if (!tree.rights().may_write(*file)) return fail(EACCES, "the caller may not write this entry");
  for (const auto& [key, value] : record.values)
    if (belongs_to_owner(std::string(kMetadataPrefix) + key) && !tree.rights().owns(*file))
      return fail(EPERM, fmt::format("{} is the owner's to set", key));
  return file->st_ino;
}

// The tokens go first and come last, because with other metadata, or half of them, they would be found where
// they are not.
std::vector<XattrChange> changes_of(const IndexRecord& record, int fd) {
  std::vector<XattrChange> changes;
  std::string_view tokens;
  for (const auto& [key, value] : record.values)
    if (key == "tokens") tokens = value;
  for (const std::string& name : tokens.empty() ? std::vector<std::string>() : xattrs_of(fd))
    if (is_tokens_xattr(name)) changes.push_back({name, std::nullopt});
  for (const auto& [key, value] : record.values)
    if (key != "tokens") changes.push_back({std::string(kMetadataPrefix) + key, value});
  const size_t parts = (tokens.size() + kMostTokenBytes - 1) / kMostTokenBytes;
  for (size_t part = parts; part-- > 0;)
    changes.push_back({tokens_xattr(part), tokens.substr(part * kMostTokenBytes, kMostTokenBytes)});
  return changes;
}

Result<void> carry_out(Pool& pool, uint64_t ino, const XattrChange& change) {
  const char* const name = change.name.c_str();
  if (const int injected = injected_error("set of a record")) return fail(injected);
  auto done =
      change.value ? pool.tree().set_xattr(ino, name, *change.value, 0) : pool.tree().remove_xattr(ino, name);
  if (done || done.error().code == ENODATA) return {};
  return fail(done.error().code == ESTALE ? ENOENT : done.error().code,
              fmt::format("{} cannot be set", change.name));
}

// The attributes of an inode before its changes, so that a record is carried out whole or not at all.
class Before {
 public:
  Before(int fd, std::span<const XattrChange> changes) {
    std::vector<char> value(kMostTokenBytes);
    for (const XattrChange& change : changes) {
      const auto bytes = sys::get_xattr(fd, change.name.c_str(), value);
      values_.try_emplace(change.name,
                          bytes ? std::optional(std::string(value.data(), *bytes)) : std::nullopt);
    }
  }
  // Tokens are removed first and set last here too. If there is no room for the former attributes either, the
  // entry has no tokens afterwards.
  void restore(Pool& pool, uint64_t ino, int fd) const {
    bool is_whole = true;
    const auto put = [&](const std::string& name, const std::optional<std::string>& value) {
      is_whole &= carry_out(pool, ino, {name, value}).has_value();
    };
    for (const auto& [name, value] : values_)
      if (is_tokens_xattr(name) || !value) put(name, std::nullopt);
    for (const auto& [name, value] : values_)
      if (!is_tokens_xattr(name) && value) put(name, value);
    for (const auto& [name, value] : values_ | std::views::reverse)
      if (is_tokens_xattr(name) && value && is_whole) put(name, value);
    for (const std::string& name : is_whole ? std::vector<std::string>() : xattrs_of(fd))
      if (is_tokens_xattr(name)) put(name, std::nullopt);
  }

 private:
  std::map<std::string, std::optional<std::string>> values_;
};

Result<void> describe(Pool& pool, uint64_t ino, const IndexRecord& record, Patience patience) {
  const auto fd = pool.inodes().open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return fail(ENOENT, "the entry has just gone");
  const auto changes = changes_of(record, fd->get());
  if (auto room = check_room(pool.limits(), fd->get(), changes); !room) return room;
  const Before before(fd->get(), changes);
  for (const XattrChange& change : changes) {
    auto done = carry_out(pool, ino, change);
    while (!done && done.error().code == ENOSPC &&
           wait_for_attributes(pool, ino, {&change, 1}, patience) == Waited::kRoom)
      done = carry_out(pool, ino, change);
    if (done) continue;
    before.restore(pool, ino, fd->get());
    return done;
  }
  return {};
}

}  // namespace

// One wait is enough: it is for all that is there, and this thread adds one record at a time.
Result<void> wait_for_catalog(Pool& pool) {
  const DiskTier* const tier = pool.disk().tier();
  if (tier == nullptr || !tier->store->log().is_full()) return {};
  const auto answer = std::make_shared<std::promise<Result<void>>>();
  pool.disk_requests().when_catalog_takes_more(
      [answer](Result<void> outcome) { answer->set_value(std::move(outcome)); });
  const auto outcome = answer->get_future().get();
  if (!outcome && outcome.error().code == ETIMEDOUT) return fail(EIO, outcome.error().message);
  return {};
}

Result<void> index_entries(ControlledPool& target, const Rights& rights,
                           std::span<const IndexRecord> records) {
  auto root = target.pool->inodes().open_inode(target.pool->root_ino(), O_PATH | O_DIRECTORY);
  if (!root) return pass(root);
  const std::atomic<bool> never = false;
  QueryWork work = target.pool->insight().index().work_until(never);
  ReadableTree tree(std::move(*root), rights, work);
  const auto failed = [&](size_t index, const Error& why) {
    return std::unexpected(in_record(index, records[index].name, why));
  };
  std::vector<uint64_t> inodes;
  for (size_t i = 0; i < records.size(); ++i) {
    const auto ino = entry_of(target, tree, records[i]);
    if (!ino) return failed(i, ino.error());
    inodes.push_back(*ino);
  }
  for (size_t i = 0; i < records.size(); ++i) {
    auto done = wait_for_catalog(*target.pool);
    if (done) done = describe(*target.pool, inodes[i], records[i], {.may_wait = !target.over_io_uring});
    if (!done) return failed(i, done.error());
  }
  return {};
}

}  // namespace kvcachefs
