#include "fs/control_files.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>

#include "base/key_value.h"
#include "fs/caller.h"
#include "fs/control/pool_files.h"
#include "fs/control_handles.h"
#include "fs/server.h"

namespace kvcachefs {
namespace {

// The size is the same for all files, as in sysfs: a program that reads by size gets something, one that
// reads to the end gets all.
constexpr off_t kStatedBytes = 4096;
constexpr blkcnt_t kStatedBlocks = 8;  // with 0 blocks cp(1) would look for holes
constexpr size_t kMostOrderBytes = 4096;
// The text of an open file is kept until its close: 11 KiB for each pool in `metrics`.
constexpr uint32_t kMostOpensOfUser = 256;
constexpr const char* kPoolsDirectoryName = "pools";

bool is_file(NodeId id) {
  return id.control_number() > 0 && !id.is_pools_directory();
}

Authority authority_of(NodeId id) {
  return id.is_administrators() ? Authority::kAdministrator : Authority::kOwner;
}

const ServerFile* server_file(NodeId id) {
  return id.is_mount_control() ? file_of_number(server_files(), id.control_number()) : nullptr;
}
const PoolFile* pool_file(NodeId id) {
  return id.is_mount_control() ? nullptr : file_of_number(pool_files(), id.control_number());
}

bool gathers(NodeId id) {
  if (const ServerFile* file = server_file(id)) return file->gathers;
  const PoolFile* file = pool_file(id);
  return file != nullptr && file->gathers;
}

bool is_administrators_of_server(NodeId id) {
  const ServerFile* file = server_file(id);
  return file != nullptr && file->of_administrator;
}
bool is_writable_of_server(NodeId id) {
  const ServerFile* file = server_file(id);
  return file != nullptr && file->write != nullptr;
}

using RightsOf = std::shared_ptr<const Rights>;
RightsOf rights_of(const Request& request) {
  const fuse_ctx& caller = *fuse_req_ctx(request);
  return std::make_shared<const Rights>(caller.uid, caller.gid, caller.pid);
}

const PoolFile* writable_file(NodeId id) {
  const PoolFile* file = pool_file(id);
  if (file == nullptr || (file->owner_only_reads && !id.is_administrators())) return nullptr;
  const bool is_writable = file->write != nullptr || file->answer != nullptr || file->records != nullptr;
  return is_writable ? file : nullptr;
}

bool answers(NodeId id) {
  const PoolFile* file = pool_file(id);
  return file != nullptr && file->answer != nullptr;
}
bool takes_records(NodeId id) {
  const PoolFile* file = pool_file(id);
  return file != nullptr && file->records != nullptr;
}

// Returns the caller's rights, if the file is one that any user may use with the user's own rights; otherwise
// null. EACCES, EINVAL: as check_rights().
Result<RightsOf> rights_for(const Request& request, NodeId id, const fuse_file_info* file) {
  if (!answers(id) && !takes_records(id)) return nullptr;
  auto rights = rights_of(request);
  if (auto may = check_rights(*rights, *file, pool_file(id)->name); !may) return pass(may);
  return rights;
}

}  // namespace

ControlFiles::ControlFiles(Pools& pools, Survivors& survivors, uint32_t generation, bool over_io_uring,
                           std::optional<gid_t> control_group, SettingOrigins* origins)
    : pools_(pools),
      survivors_(survivors),
      origins_(origins),
      over_io_uring_(over_io_uring),
      control_group_(control_group),
      next_handle_((uint64_t{generation} << kGenerationShift) + 1) {
  describe({});
}

std::vector<ControlFiles::Named> ControlFiles::list(NodeId directory) const {
  std::vector<Named> result;
  if (directory.is_pools_directory()) {
    for (const auto& pool : pools_.list())
      result.push_back({pool->name(), NodeId::of_administrators(pool->number(), 0), true});
  } else if (directory.is_mount_control()) {
    for (const ServerFile& file : server_files())
      result.push_back({std::string(file.name), NodeId::of_control(0, file.number)});
    result.push_back({kPoolsDirectoryName, {NodeId::kPoolsDirectory}, true});
  } else {
    for (const PoolFile& file : pool_files()) {
      if (directory.is_administrators() && !file.of_administrator) continue;
      const uint16_t pool = directory.pool_number();
      result.push_back({std::string(file.name), directory.is_administrators()
                                                    ? NodeId::of_administrators(pool, file.number)
                                                    : NodeId::of_control(pool, file.number)});
    }
  }
  return result;
}

Result<struct stat> ControlFiles::attributes_of(NodeId id) const {
  struct stat attributes {};
  attributes.st_ino = id.value;
  attributes.st_nlink = 1;
  mode_t file_mode = 0444;
  mode_t directory_mode = 0555;
  if (is_administrators_of_server(id)) file_mode = server_file(id)->mode(Authority::kAdministrator);
  if (!id.is_mount_control()) {
    auto pool = pools_.find(id.pool_number());
    if (pool == nullptr) return fail(ESTALE);
    const PoolFile* const file = pool_file(id);
    if (is_file(id) && file == nullptr) return fail(ESTALE);
    if (file != nullptr) file_mode = file->mode(authority_of(id));
    if (!id.is_administrators()) {
      // The owner of the pool's root owns its control files, and so may steer the pool.
      auto root = pool->inodes().attributes(pool->root_ino());
      if (!root) return root;
      attributes.st_uid = root->st_uid;
      attributes.st_gid = control_group_.value_or(root->st_gid);
      if (control_group_) file_mode |= (file_mode & S_IRWXU) >> 3;
    }
  }
  if (id.is_pools_directory() || id.is_administrators()) directory_mode = 0700;
  if (is_file(id)) {
    attributes.st_mode = S_IFREG | file_mode;
    attributes.st_size = kStatedBytes;
    attributes.st_blocks = kStatedBlocks;
  } else {
    attributes.st_mode = S_IFDIR | directory_mode;
    attributes.st_nlink = 2;
  }
  return attributes;
}

void ControlFiles::reply_entry_of(const Request& request, NodeId id) {
  auto attributes = attributes_of(id);
  if (!attributes) return reply_error(request, std::move(attributes.error()));
  fuse_entry_param entry = entry_of(id.value, 0, *attributes);
  entry.attr_timeout = 0;
  // Because pools come and go, and their numbers are used again, the kernel must not keep these names.
  if (id.is_administrators()) entry.entry_timeout = 0;
  reply_entry(request, entry);
}

void ControlFiles::lookup(const Request& request, NodeId directory, std::string_view name) {
  for (const Named& known : list(directory))
    if (known.name == name) return reply_entry_of(request, known.id);
  reply_no_entry(request, directory.is_pools_directory() ? 0 : kLongTimeoutS);
}

void ControlFiles::getattr(const Request& request, NodeId id) {
  auto attributes = attributes_of(id);
  if (!attributes) return reply_error(request, std::move(attributes.error()));
  attributes->st_blksize = kBufferBytes;
  (void)fuse_reply_attr(request, &*attributes, 0);
}

Result<std::shared_ptr<ControlFiles::OpenFile>> ControlFiles::open_file(NodeId id, uint64_t handle,
                                                                        bool for_reading,
                                                                        QueryBudget::Payer payer) {
  if (!is_file(id)) return fail(EISDIR);
  const auto described = server();
  const ServerFile* const of_server = server_file(id);
  const PoolFile* const of_pool = pool_file(id);
  auto result = std::make_shared<OpenFile>(id, query_budget_, payer);
  if (auto pool = of_pool == nullptr ? nullptr : pools_.find(id.pool_number()))
    result->pool = std::make_unique<ControlledPool>(
        std::move(pool), pools_, authority_of(id), described->info.io_mode,
        described->info.transport == "io_uring", handle, origins_, &queries_end_);
  if (of_server == nullptr && result->pool == nullptr) return fail(ESTALE);
  if (!for_reading) return result;
  auto reader = of_server != nullptr ? of_server->open(*described) : of_pool->open(*result->pool);
  if (!reader) return pass(reader);
  result->reader = std::move(*reader);
  return result;
}

Result<uint64_t> ControlFiles::handle_for(const Request& request, NodeId id) {
  std::optional<uint64_t> opener;
  if (takes_records(id) || answers(id)) opener = opener_with(*rights_of(request));
  if (id.is_administrators() || is_administrators_of_server(id)) {
    auto administrator = need_administrator(request);
    if (!administrator) return pass(administrator);
    auto process = administrator->process();
    if (!process) return fail(EPERM);
    opener = *process;
  }
  MutexLock lock(mutex_);
  for (;;) {
    const uint64_t number = next_handle_++;
    const uint64_t handle = opener ? openers_handle(*opener, number) : number;
    if (!open_files_.contains(handle)) return handle;
  }
}

void ControlFiles::run(bool elsewhere, const Request& request, ControlReads::Job job) {
  if (!elsewhere || over_io_uring_) return job();
  gathering_.run(request, std::move(job));
}

void ControlFiles::open(const Request& request, NodeId id, fuse_file_info* file) {
  auto handle = handle_for(request, id);
  if (!handle) return reply_error(request, std::move(handle.error()));
  file->fh = *handle;
  if (auto rights = rights_for(request, id, file); !rights)
    return reply_error(request, std::move(rights.error()));
  run(gathers(id) && !answers(id), request,
      [this, request, id, copy = *file]() mutable { open_now(request, id, &copy); });
}

void ControlFiles::open_now(const Request& request, NodeId id, fuse_file_info* file) {
  const uid_t user = Caller::user_of(fuse_req_ctx(request)->pid, fuse_req_ctx(request)->uid);
  bool has_its_share = false;
  {
    MutexLock lock(mutex_);
    has_its_share = ++opens_of_user_[user] > kMostOpensOfUser;
  }
  // Root of a container has the same uid as the host's root.
  const bool is_administrator = (has_its_share || user == 0) && need_administrator(request).has_value();
  if (has_its_share && !is_administrator) {
    give_back_open(user);
    return reply_error(request, {EMFILE, {}});
  }
  auto opened = open_file(id, file->fh, (file->flags & O_ACCMODE) != O_WRONLY,
                          is_administrator ? QueryBudget::kAdministrator : user);
  const auto handle = file->fh;
  if (opened) {
    (*opened)->user = user;
    MutexLock lock(mutex_);
    open_files_[handle] = *opened;
  } else {
    give_back_open(user);
  }
  if (!opened) return reply_error(request, std::move(opened.error()));
  file->direct_io = 1;
  const bool is_endless = (*opened)->reader != nullptr && (*opened)->reader->is_endless();
  file->nonseekable = is_endless ? 1 : 0;
  file->noflush = is_endless ? 1 : 0;  // the end of the file comes when the mount goes: a close must not fail
  if (fuse_reply_open(request, file) == -ENOENT) forget_open(handle);
}

std::shared_ptr<ControlFiles::OpenFile> ControlFiles::find_open(NodeId id, const fuse_file_info* file) {
  if (auto known = known_open(file)) return known->id.value == id.value ? known : nullptr;
  // A process that died had the file open. A client that reads on in it gets the present text.
  auto opened = open_file(id, file->fh, true);
  if (!opened) opened = open_file(id, file->fh, false);  // write-only
  if (!opened) return nullptr;
  if ((*opened)->reader != nullptr) (*opened)->reader->follows_another();
  (*opened)->query.follows_another();
  (*opened)->records.follows_another();
  MutexLock lock(mutex_);
  return open_files_.try_emplace(file->fh, std::move(*opened)).first->second;
}

void ControlFiles::read(const Request& request, NodeId id, size_t size, off_t offset,
                        const fuse_file_info* file) {
  // The rights are looked up now, however long the read waits for its turn.
  auto rights = answers(id) ? rights_for(request, id, file) : RightsOf();
  if (!rights) return reply_error(request, std::move(rights.error()));
  const auto known = known_open(file);
  const bool is_gathered =
      !answers(id) && known != nullptr && known->reader != nullptr && known->reader->is_gathered();
  run(!is_gathered && gathers(id), request,
      [this, request, id, size, offset, rights = *rights, copy = *file] {
        const std::shared_ptr<OpenFile> open = find_open(id, &copy);
        if (open == nullptr || open->reader == nullptr) return reply_error(request, {EBADF, {}});
        const bool is_endless = open->reader->is_endless(), may_wait = (copy.flags & O_NONBLOCK) == 0;
        if (is_endless && !over_io_uring_)
          return logs_.run(request, {open, open->reader.get()}, size, may_wait);
        auto text = read_some(rights.get(), *open, static_cast<uint64_t>(offset), size);
        if (!text) return reply_io_error(request, std::move(text.error()));
        if (text->empty() && is_endless && !may_wait) return reply_error(request, {EAGAIN, {}});
        (void)fuse_reply_buf(request, text->data(), text->size());
      });
}

Result<std::string> ControlFiles::read_some(const Rights* rights, OpenFile& open, uint64_t offset,
                                            size_t size) {
  if (rights == nullptr) return open.reader->read(offset, size);
  return open.query.read(offset, size, [&](std::string_view query, AnswerText& text) {
    return pool_file(open.id)->answer(*open.pool, *rights, query, text);
  });
}

Result<void> ControlFiles::order(const Request& request, NodeId id, std::string_view text, uint64_t handle,
                                 OpenFile& open) {
  if (is_writable_of_server(id)) {
    const ServerFile& file = *server_file(id);
    if (auto may = check_administrator(request, file.name, handle); !may) return may;
    if (text.size() > kMostOrderBytes) return fail(EINVAL);
    const std::string_view order = trimmed(text);
    std::string_view pairs = order;
    if (!pools_.find(take_part(pairs, ':'))) server_of(request).survivors.requests().attempt(request.unique);
    auto done = file.write(*server(), order);
    // A process that died has made the pool.
    if (!done && done.error().code == EEXIST && request.attempted) done = {};
    if (done) (void)server_of(request).pools_changed();  // the configuration keeps the pool
    return done;
  }
  const PoolFile* file = writable_file(id);
  if (file == nullptr) return fail(EACCES);
  if (id.is_administrators())
    if (auto may = check_administrator(request, file->name, handle); !may) return may;
  // The open file keeps its pool, so the pool's number is not another pool's.
  ControlledPool* const pool = open.pool.get();
  if (pool == nullptr) return fail(ESTALE);
  if (file->answer != nullptr) return open.query.add(text);
  if (file->takes_lines) {
    auto lines = open.lines.add(text);
    if (!lines) return pass(lines);
    return file->write(*pool, *lines);
  }
  if (text.size() > kMostOrderBytes) return fail(EINVAL);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const bool is_kept = changes_settings(*file);
  if (auto may = is_kept ? server_of(request).may_change_pools() : Result<void>(); !may) return may;
  if (auto done = file->write(*pool, text); !done) return done;
  auto written = server_of(request).pools_changed();
  return is_kept ? written : Result<void>();
}

Result<size_t> ControlFiles::record(const Rights& rights, std::string_view text, OpenFile& open,
                                    bool is_first) {
  return open.records.write(
      text, is_first, [&](auto records) { return pool_file(open.id)->records(*open.pool, rights, records); });
}

void ControlFiles::write(const Request& request, NodeId id, const char* bytes, size_t size, off_t offset,
                         const fuse_file_info* file) {
  // The file is checked first, because opening it anew for its content may cost much.
  if (writable_file(id) == nullptr && !is_writable_of_server(id)) return reply_error(request, {EACCES, {}});
  auto rights = rights_for(request, id, file);
  if (!rights) return reply_error(request, std::move(rights.error()));
  const std::shared_ptr<OpenFile> open = find_open(id, file);
  if (open == nullptr) return reply_error(request, {EBADF, {}});
  takes_long(request);
  WaitingLane::Job job = [this, request, id, open, rights = *rights, text = std::string(bytes, size),
                          handle = file->fh, is_first = offset == 0] {
    Result<size_t> taken = text.size();
    if (takes_records(id))
      taken = record(*rights, text, *open, is_first);
    else if (auto done = order(request, id, text, handle, *open); !done)
      taken = pass(done);
    if (!taken) return reply_io_error(request, std::move(taken.error()));
    about_to_answer(request);
    (void)fuse_reply_write(request, *taken);
  };
  const auto& start = server_of(request).start_helper;
  if (open->pool == nullptr || !start || answers(id)) return job();
  const std::shared_ptr<Pool>& pool = open->pool->pool;
  WaitingLane& lane = takes_records(id) ? pool->settings().records() : pool->settings().orders();
  if (!lane.hand_over(job, [&] { return start(pool, lane); })) job();
}

void ControlFiles::flush(const Request& request, NodeId id, const fuse_file_info* file) {
  // A handle that this process does not know has no unfinished line.
  const std::shared_ptr<OpenFile> open = known_open(file);
  const bool is_its = open != nullptr && open->id.value == id.value;
  const std::string line = is_its ? open->lines.finish() : std::string();
  if (!line.empty()) {
    takes_long(request);
    auto done = order(request, id, line + '\n', file->fh, *open);
    if (!done) return reply_error(request, std::move(done.error()));
  }
  // It may go on in another process, so it stays; but none is taken for whole because its writer has ended.
  if (is_its && open->records.is_unfinished())
    return reply_error(request, {EINVAL, "the last record has no end"});
  (void)fuse_reply_err(request, 0);
}

void ControlFiles::release(const Request& request, const fuse_file_info* file) {
  forget_open(file->fh);
  (void)fuse_reply_err(request, 0);
}

}  // namespace kvcachefs
