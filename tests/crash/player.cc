#include "tests/crash/player.h"

#include <dirent.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace kvcachefs::test {
namespace {

constexpr const char* kIdXattr = "user.model.id";
constexpr const char* kMarkXattr = "user.mark";
constexpr uint64_t kClient = 7;
constexpr int kOpenTries = 8;
constexpr size_t kTraceLines = 4000;

std::string xattr_of(int fd, const char* name) {
  std::array<char, 64> value{};
  auto size = sys::get_xattr(fd, name, value);
  return size ? std::string(value.data(), *size) : std::string();
}

}  // namespace

void Player::note(std::string line) {
  if (trace_.size() < kTraceLines) trace_.push_back(std::move(line));
}

void Player::hear_of_discarded() {
  for (const Discarded& discarded : world_.take_discarded()) {
    Object* const object = expectation_.by_ino(discarded.ino);
    const Object* const parent = discarded.parent_ino == world_.pool().root_ino()
                                     ? &expectation_.object(Expectation::kRoot)
                                     : expectation_.by_ino(discarded.parent_ino);
    if (object == nullptr || parent == nullptr) throw Violation("what was not there is discarded");
    const Place place{parent->id, discarded.name};
    note(fmt::format("  (discarded: object {} at {})", object->id, text(place)));
    if (expectation_.at(place) != object->id)
      throw Violation(text(place) + ": another one's name is discarded");
    if (object->opens > 0) throw Violation(text(place) + ": discarded while it is open");
    if (!rules_.may_discard && !world_.disk_failed())
      throw Violation(text(place) + ": discarded though there is room on the disk");
    expectation_.unlink(place);
    heard_.insert(place);
    forget(*object);
  }
}

void Player::hear() {
  if (deaf_) return;
  hear_of_discarded();
  std::erase_if(asked_, [&](const Asked& asked) {
    if (!*asked.answer) return false;
    if (**asked.answer != 0) {
      if (!world_.crashed() && !rules_.flush_fails && !rules_.faulty && !rules_.may_discard)
        throw Violation(fmt::format("not durable, errno {}", **asked.answer));
      return true;
    }
    if (world_.crashed()) throw Violation("durable, it says, after the crash");
    note(fmt::format("  (durable: as of moment {})", asked.moment));
    for (const auto& [id, names] : asked.objects)
      // The content of a file without a name may be on the disk, but that says nothing about its former
      // names.
      if (Object& object = expectation_.object(id); !object.gone)
        expectation_.durable(object, asked.moment, names);
    for (const Place& place : asked.places) expectation_.durable(place, asked.moment);
    return true;
  });
}

void Player::step(uint64_t steps_max) {
  for (uint64_t steps = random_.below(steps_max + 1); steps > 0; --steps) {
    world_.step();
    hear();
  }
}

uint64_t Player::ino_of(uint64_t id) {
  return id == Expectation::kRoot ? world_.pool().root_ino() : expectation_.object(id).ino;
}

Result<Directory> Player::directory(uint64_t id) {
  return world_.pool().inodes().directory(ino_of(id));
}

std::optional<Player::Handle> Player::open(uint64_t ino, bool writer) {
  Pool& pool = world_.pool();
  bool intact = false;
  for (int tries = 1; tries <= kOpenTries; ++tries) {
    const auto answer =
        pool.open_files().begin_open(ino, {.writer = writer, .from_disk = intact && !writer}, kClient);
    if (!answer) return std::nullopt;
    if (answer->presence == Presence::kHere) {
      Handle handle{.id = 0, .ino = ino, .fd = {}, .writer = writer, .from_disk = answer->opened.from_disk};
      if (Object* object = expectation_.by_ino(ino)) {
        handle.id = object->id;
        ++object->opens;
        if (writer) ++object->writers;
      }
      keep(handle);
      if (handle.from_disk) return handle;
      auto fd = pool.inodes().open_inode(ino, writer ? O_RDWR : O_RDONLY);
      if (!fd)
        throw Violation(fmt::format("inode {} is open and cannot be opened: {}", ino, fd.error().code));
      handle.fd = std::move(*fd);
      return handle;
    }
    if (answer->presence != Presence::kCold) return std::nullopt;
    auto promoted = std::make_shared<std::optional<PromoteOutcome>>();
    pool.disk_requests().promote(ino, [promoted](const PromoteOutcome& outcome) { *promoted = outcome; });
    if (!world_.pump([&] { return promoted->has_value(); })) throw Violation("a promotion does not end");
    hear();
    intact = (*promoted)->kind == PromoteOutcome::Kind::kIntactOnDisk;
    if (intact) tries = std::max(tries, kOpenTries - 1);
  }
  return std::nullopt;
}

void Player::keep(Handle& handle) {
  auto kept = world_.survivors().handles().opened(
      {.inode = {1, handle.ino}, .unique = 1, .writer = handle.writer, .from_disk = handle.from_disk});
  if (!kept) throw Violation("an open is not written down");
  handle.kept = *kept;
}

void Player::take_over() {
  hear();
  if (!world_.take_over()) return;
  note("another process takes over");
  asked_.clear();
  // The kernel looks up every name again.
  for (const Found& one : walk(true)) {
    Object& object = expectation_.object(one.id);
    if (object.ino != one.ino) throw Violation(text(one.place) + ": is another inode after a takeover");
    object.lookups += one.lookups;
  }
  hear();
  check_now();
}

std::optional<std::string> Player::content(const Handle& handle) {
  if (!handle.from_disk) {
    auto attributes = sys::stat_of(handle.fd.get());
    if (!attributes) throw Violation("an open file has no attributes");
    std::string bytes(static_cast<size_t>(attributes->st_size), '\0');
    auto count = sys::read_at(handle.fd.get(), bytes, 0);
    if (!count || *count != bytes.size()) throw Violation("an open file cannot be read");
    return bytes;
  }
  std::string bytes;
  for (;;) {
    auto error = std::make_shared<std::optional<int>>();
    auto piece = std::make_shared<std::string>();
    const size_t size = 4096 * (1 + random_.below(8)) - random_.below(2);
    world_.pool().disk_requests().read_from_disk(
        handle.ino, bytes.size(), size, [error, piece](Result<std::span<const std::byte>> read) {
          *error = read ? 0 : read.error().code;
          if (read) piece->assign(reinterpret_cast<const char*>(read->data()), read->size());
        });
    if (!world_.pump([&] { return error->has_value(); })) throw Violation("a read does not end");
    hear();
    if (**error != 0 && rules_.faulty) return std::nullopt;
    if (**error != 0) throw Violation(fmt::format("a read from the disk fails: {}", **error));
    if (piece->empty()) return bytes;
    bytes += *piece;
  }
}

void Player::close(Handle handle) {
  Pool& pool = world_.pool();
  const bool early = random_.one_in(2);
  if (early) handle.fd.reset();
  if (handle.writer) {
    pool.open_files().flushed(handle.ino);
    if (rules_.durability == Durability::kSync && handle.id != 0) {
      const Object& object = expectation_.object(handle.id);
      pool.disk_requests().sync(handle.ino, ask({.answer = {},
                                                 .moment = expectation_.moment(),
                                                 .objects = {{object.id, object.names}},
                                                 .places = {}}));
      wait_for_answers();
    }
  }
  handle.fd.reset();
  world_.survivors().handles().closed(handle.kept);
  pool.open_files().end_open(handle.ino, {.writer = handle.writer, .from_disk = handle.from_disk});
  if (handle.id == 0) return;
  Object& object = expectation_.object(handle.id);
  --object.opens;
  if (handle.writer) --object.writers;
  forget(object);
}

void Player::forget(Object& object) {
  if (!object.gone || object.opens > 0 || object.lookups == 0) return;
  world_.pool().inodes().forget(object.ino, std::exchange(object.lookups, 0));
}

Waiter Player::ask(Asked asked) {
  auto answer = std::make_shared<std::optional<int>>();
  asked.answer = answer;
  asked_.push_back(std::move(asked));
  return [answer](Result<void> outcome) { *answer = outcome ? 0 : outcome.error().code; };
}

void Player::wait_for_answers() {
  const bool answered = world_.pump(
      [&] {
        return std::ranges::all_of(asked_, [](const Asked& asked) { return asked.answer->has_value(); });
      },
      40'000);
  if (!answered) throw Violation("a sync does not end");
  hear();
}

void Player::close_all() {
  hear();
  while (!handles_.empty()) {
    Handle handle = std::move(handles_.back());
    handles_.pop_back();
    close(std::move(handle));
  }
  wait_for_answers();
}

void Player::forget_life() {
  hear_of_discarded();
  handles_.clear();
  asked_.clear();
}

void Player::note_times() {
  for (auto& [id, object] : expectation_.objects()) {
    if (object.gone || object.kind != ObjectKind::kFile) continue;
    if (auto attributes = world_.pool().inodes().attributes(object.ino))
      object.modified = attributes->st_mtim;
  }
}

void Player::all_durable() {
  hear();
  const uint64_t moment = expectation_.moment();
  for (auto& [id, object] : expectation_.objects()) {
    if (object.gone || object.kind != ObjectKind::kFile) continue;
    auto facts = world_.pool().insight().facts(object.ino);
    if (!facts) throw Violation(fmt::format("object {} is gone", id));
    if (facts->tier != "dirty") {
      expectation_.durable(object, moment, object.names);
    } else if (!rules_.may_discard && !rules_.faulty) {
      throw Violation(fmt::format("object {} is not on the disk after a clean stop", id));
    }
  }
}

Found Player::look_at(int directory, const Place& place, bool first) {
  auto fd = sys::open_at(directory, place.name.c_str(), O_PATH | O_NOFOLLOW);
  if (!fd) throw Violation(text(place) + ": cannot be looked at");
  auto handle = sys::handle_of(fd->get());
  auto attributes = sys::stat_of(fd->get());
  if (!handle || !attributes) throw Violation(text(place) + ": cannot be looked at");
  Found found{.place = place, .id = 0, .kind = ObjectKind::kFile, .attributes = {}, .content = {}};
  if (first) {
    if (auto known = world_.pool().inodes().looked_up(*handle, *attributes); !known)
      throw Violation(text(place) + ": has a name and is not known");
    found.lookups = 1;
  }
  const std::string id = xattr_of(fd->get(), kIdXattr);
  if (id.empty()) throw Violation(text(place) + ": has lost its xattrs");
  found.id = std::stoull(id);
  found.kind = S_ISDIR(attributes->st_mode) ? ObjectKind::kDirectory : ObjectKind::kFile;
  found.attributes = {.mode = attributes->st_mode & 07777, .mark = xattr_of(fd->get(), kMarkXattr)};
  found.ino = handle->ino;
  found.modified = attributes->st_mtim;
  return found;
}

void Player::walk_directory(uint64_t id, uint64_t ino, bool first, std::vector<Found>& found) {
  auto fd = world_.pool().inodes().open_inode(ino, O_RDONLY | O_DIRECTORY);
  if (!fd) throw Violation("a directory cannot be opened");
  std::vector<std::string> names;
  DIR* const stream = ::fdopendir(fd->release());
  while (const dirent* entry = ::readdir(stream))
    if (std::string name = entry->d_name; name != "." && name != "..") names.push_back(std::move(name));
  std::ranges::sort(names);
  for (const std::string& name : names) {
    found.push_back(look_at(::dirfd(stream), {id, name}, first));
    if (found.back().kind != ObjectKind::kDirectory) continue;
    const uint64_t below = found.back().id;
    walk_directory(below, found.back().ino, first, found);
  }
  ::closedir(stream);
}

std::vector<Found> Player::walk(bool first) {
  if (!first) hear();
  std::vector<Found> found;
  walk_directory(Expectation::kRoot, world_.pool().root_ino(), first, found);
  deaf_ = true;
  for (Found& one : found) {
    if (one.kind == ObjectKind::kDirectory) continue;
    auto opened = open(one.ino, false);
    std::optional<std::string> bytes;
    if (opened) {
      bytes = content(*opened);
      close(std::move(*opened));
    }
    one.unread = !bytes;
    if (bytes) one.content = std::move(*bytes);
    if (one.unread && !rules_.may_discard && !rules_.faulty)
      throw Violation(text(one.place) + ": cannot be opened");
  }
  deaf_ = false;
  return found;
}

void Player::check_now() {
  std::vector<Found> found = walk(false);
  heard_.clear();
  hear();
  std::erase_if(found, [&](const Found& one) { return heard_.contains(one.place); });
  expectation_.check_now(found);
}

void Player::check_after_crash() {
  expectation_.forget_life();
  const std::vector<Found> found = walk(true);
  expectation_.check(found, rules_.faulty);
  expectation_.begin_again(found);
  hear();
}

}  // namespace kvcachefs::test
