// The operations of a Player.
#include <linux/fs.h>

#include <algorithm>
#include <array>

#include "tests/crash/player.h"

namespace kvcachefs::test {
namespace {

constexpr const char* kIdXattr = "user.model.id";
constexpr const char* kMarkXattr = "user.mark";
constexpr size_t kHandles = 5;
constexpr uint64_t kNames = 24;
constexpr size_t kDirectories = 6;
constexpr uint64_t kPieceBytes = 16 << 10;
constexpr uint64_t kLargestBytes = 40 << 10;
constexpr int kRoomTries = 20;
constexpr uint64_t kRoomSteps = 40;

uint64_t draw_size(Random& random) {
  switch (random.below(8)) {
    case 0:
      return 0;
    case 1:
      return 1 + random.below(4096);
    case 2:
      return 4096 * (1 + random.below(10));
    case 3:
      return 100'000 + random.below(60'000);
    default:
      return 1 + random.below(kLargestBytes);
  }
}

}  // namespace

Place Player::draw_place() {
  std::vector<uint64_t> directories;
  for (const auto& [id, object] : expectation_.objects())
    if (object.kind == ObjectKind::kDirectory && !object.gone) directories.push_back(id);
  return {directories[random_.below(directories.size())], fmt::format("f{}", random_.below(kNames))};
}

Object* Player::draw(ObjectKind kind) {
  std::vector<Object*> there;
  for (auto& [id, object] : expectation_.objects())
    if (object.kind == kind && !object.gone && id != Expectation::kRoot) there.push_back(&object);
  return there.empty() ? nullptr : there[random_.below(there.size())];
}

void Player::write(Handle& handle, uint64_t offset, uint64_t bytes) {
  const std::string content = pattern(random_.next(), bytes);
  int tries = 0;
  for (uint64_t done = 0; done < bytes && tries < kRoomTries;) {
    const uint64_t piece = std::min(kPieceBytes, bytes - done);
    auto count = sys::write_at(handle.fd.get(), std::span(content).subspan(done, piece), offset + done);
    if (!count || *count == 0) {
      ++tries;
      for (uint64_t steps = 0; steps < kRoomSteps; ++steps) world_.step();
      hear();
      continue;
    }
    Object& object = expectation_.object(handle.id);
    std::string now = object.content.now();
    now.resize(std::max<size_t>(now.size(), offset + done + *count));
    now.replace(offset + done, *count, content, done, *count);
    expectation_.set_content(object, std::move(now));
    done += *count;
    if (random_.one_in(3)) step(3);
  }
}

void Player::create() {
  const Place place = draw_place();
  if (expectation_.at(place) != Expectation::kNothing) return overwrite();
  auto parent = directory(place.directory);
  if (!parent) throw Violation("a directory is not there");
  const mode_t mode = random_.one_in(4) ? 0600 : 0644;
  auto fd = sys::open_at(parent->fd, place.name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, mode);
  if (!fd) return note(fmt::format("create {}: errno {}", text(place), fd.error().code));
  auto handle = sys::handle_of(fd->get());
  const uint64_t id = expectation_.next_id();
  (void)sys::set_xattr(fd->get(), kIdXattr, std::to_string(id), 0);
  auto known = world_.pool().open_files().created({.fd = fd->get(),
                                                   .ino = handle->ino,
                                                   .generation = handle->generation,
                                                   .open = true,
                                                   .writer = true,
                                                   .named = true,
                                                   .name = place.name,
                                                   .node = 0});
  if (!known) throw Violation("a new file is not taken");
  Object& object = expectation_.make(ObjectKind::kFile, place, {mode, ""}, handle->ino);
  object.lookups = object.opens = object.writers = 1;
  Handle open{
      .id = id, .ino = handle->ino, .fd = std::move(*fd), .writer = true, .from_disk = false, .kept = 0};
  keep(open);
  const uint64_t bytes = draw_size(random_);
  note(fmt::format("create {}: object {}, inode {}, {} bytes", text(place), id, handle->ino, bytes));
  write(open, 0, bytes);
  if (random_.one_in(4) && handles_.size() < kHandles)
    handles_.push_back(std::move(open));
  else
    close(std::move(open));
}

void Player::overwrite() {
  Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr) return;
  const uint64_t id = object->id;
  const bool anew = random_.one_in(2);
  note(fmt::format("overwrite object {}{}", id, anew ? " from its start" : ""));
  if (anew && object->writers == 0) {
    const auto cut = world_.pool().open_files().truncate(object->ino, 0);
    if (!cut || *cut != Presence::kHere) return note("  cannot be truncated");
    expectation_.empty(*object);
    world_.pool().tree().attributes_changed(object->ino);
    step(2);
    if (object->gone) return;
  }
  auto handle = open(object->ino, true);
  if (!handle) return note("  cannot be opened");
  const uint64_t size = object->content.now().size();
  write(*handle, size == 0 ? 0 : random_.below(size), draw_size(random_) / 2);
  if (random_.one_in(4) && handles_.size() < kHandles)
    handles_.push_back(std::move(*handle));
  else
    close(std::move(*handle));
}

void Player::read() {
  if (!handles_.empty() && random_.one_in(3)) {
    const size_t index = random_.below(handles_.size());
    Handle handle = std::move(handles_[index]);
    handles_.erase(handles_.begin() + static_cast<std::ptrdiff_t>(index));
    note(fmt::format("close object {}", handle.id));
    return close(std::move(handle));
  }
  Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr) return;
  note(fmt::format("read object {}", object->id));
  auto handle = open(object->ino, false);
  if (!handle) {
    hear();
    if (!object->gone) throw Violation(fmt::format("object {} cannot be opened", object->id));
    return;
  }
  const bool from_disk = handle->from_disk;
  if (auto found = content(*handle); found && *found != object->content.now())
    throw Violation(fmt::format("object {} reads {} wrong bytes{}", object->id, found->size(),
                                from_disk ? " from the disk" : ""));
  if (random_.one_in(4) && handles_.size() < kHandles)
    handles_.push_back(std::move(*handle));
  else
    close(std::move(*handle));
}

void Player::truncate() {
  Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr || object->writers > 0) return;
  std::string now = object->content.now();
  const uint64_t size = random_.below(now.size() + 5000);
  note(fmt::format("truncate object {} to {} bytes", object->id, size));
  for (int tries = 0; tries < 4; ++tries) {
    const auto cut = world_.pool().open_files().truncate(object->ino, size);
    if (cut && *cut == Presence::kHere) {
      now.resize(size);
      expectation_.set_content(*object, std::move(now));
      return world_.pool().tree().attributes_changed(object->ino);
    }
    auto handle = open(object->ino, false);
    if (!handle) return;
    close(std::move(*handle));
  }
}

void Player::rename() {
  Place from = draw_place();
  for (int tries = 0; tries < 10 && expectation_.at(from) == Expectation::kNothing; ++tries)
    from = draw_place();
  if (expectation_.at(from) == Expectation::kNothing) return;
  const Place to = draw_place();
  auto source = directory(from.directory);
  auto target = directory(to.directory);
  if (!source || !target) throw Violation("a directory is not there");
  const bool swaps = random_.one_in(5);
  auto done = world_.pool().tree().rename(source->fd, from.name.c_str(), target->fd, to.name.c_str(),
                                          swaps ? RENAME_EXCHANGE : 0);
  note(fmt::format("{} {} {} (object {}, there {}): {}", swaps ? "exchange" : "rename", text(from), text(to),
                   expectation_.at(from), expectation_.at(to), done ? 0 : done.error().code));
  if (!done) return;
  const uint64_t id = expectation_.at(from);
  const uint64_t replaced = expectation_.at(to);
  if (swaps)
    expectation_.exchange(from, to);
  else
    expectation_.rename(from, to);
  if (replaced != Expectation::kNothing) forget(expectation_.object(replaced));
  if (rules_.durability != Durability::kSync) return;
  Asked asked{.answer = {}, .moment = expectation_.moment(), .objects = {}, .places = {}};
  if (expectation_.object(id).durable_at != 0) asked.places = {to};
  const uint64_t there = expectation_.at(from);
  if (there == Expectation::kNothing || expectation_.object(there).durable_at != 0)
    asked.places.push_back(from);
  world_.pool().disk_requests().sync_name(target->fd, to.name.c_str(), ask(std::move(asked)));
  wait_for_answers();
}

void Player::link() {
  Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr) return;
  const Place place = draw_place();
  auto parent = directory(place.directory);
  if (!parent) throw Violation("a directory is not there");
  auto done = world_.pool().tree().link(object->ino, parent->fd, place.name.c_str());
  note(fmt::format("link object {} {}: {}", object->id, text(place), done ? 0 : done.error().code));
  if (!done) return;
  ++object->lookups;
  expectation_.link(*object, place);
}

void Player::unlink() {
  Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr) return;
  const Place place = *object->names.begin();
  auto parent = directory(place.directory);
  if (!parent) throw Violation("a directory is not there");
  auto done = world_.pool().tree().remove(parent->fd, place.name.c_str(), false);
  note(fmt::format("unlink {} (object {}): {}", text(place), object->id, done ? 0 : done.error().code));
  if (!done) throw Violation("a name cannot be removed");
  expectation_.unlink(place);
  forget(*object);
}

void Player::make_directory() {
  const Place place = draw_place();
  const auto count = std::ranges::count_if(expectation_.objects(), [](const auto& object) {
    return object.second.kind == ObjectKind::kDirectory && !object.second.gone;
  });
  if (static_cast<size_t>(count) > kDirectories) return remove_directory();
  auto parent = directory(place.directory);
  if (!parent) throw Violation("a directory is not there");
  if (!sys::make_directory_at(parent->fd, place.name.c_str(), 0755)) return;
  auto fd = sys::open_at(parent->fd, place.name.c_str(), O_PATH | O_NOFOLLOW);
  const uint64_t id = expectation_.next_id();
  (void)sys::set_xattr(fd->get(), kIdXattr, std::to_string(id), 0);
  auto handle = sys::handle_of(fd->get());
  auto attributes = sys::stat_of(fd->get());
  note(fmt::format("mkdir {}: object {}, inode {}", text(place), id, handle->ino));
  if (!world_.pool().inodes().looked_up(*handle, *attributes))
    throw Violation("a new directory is not taken");
  world_.pool().tree().made(*handle, S_ISDIR(attributes->st_mode), parent->fd, place.name.c_str());
  expectation_.make(ObjectKind::kDirectory, place, {0755, ""}, handle->ino).lookups = 1;
}

void Player::remove_directory() {
  Object* const object = draw(ObjectKind::kDirectory);
  if (object == nullptr) return;
  const Place place = *object->names.begin();
  auto parent = directory(place.directory);
  if (!parent) throw Violation("a directory is not there");
  auto done = world_.pool().tree().remove(parent->fd, place.name.c_str(), true);
  note(fmt::format("rmdir {} (object {}): {}", text(place), object->id, done ? 0 : done.error().code));
  if (!done) return;
  expectation_.unlink(place);
  forget(*object);
}

void Player::change_attributes() {
  Object* const object = draw(random_.one_in(4) ? ObjectKind::kDirectory : ObjectKind::kFile);
  if (object == nullptr) return;
  auto fd = world_.pool().inodes().open_inode(object->ino, O_PATH | O_NOFOLLOW);
  if (!fd) throw Violation("an inode is not there");
  Attributes now = object->attributes.now();
  if (random_.one_in(2)) {
    now.mode = static_cast<mode_t>(0700 + random_.below(64));
    if (!sys::change_mode(fd->get(), now.mode)) throw Violation("chmod fails");
  } else {
    now.mark = fmt::format("m{}", random_.below(1000));
    if (!sys::set_xattr(fd->get(), kMarkXattr, now.mark, 0)) throw Violation("setxattr fails");
  }
  note(fmt::format("mode {:o} and mark '{}' of object {}", now.mode, now.mark, object->id));
  expectation_.set_attributes(*object, std::move(now));
  world_.pool().tree().attributes_changed(object->ino, true);
}

void Player::sync() {
  Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr) return;
  note(fmt::format("fsync object {} as of moment {}", object->id, expectation_.moment()));
  world_.pool().disk_requests().sync(object->ino, ask({.answer = {},
                                                       .moment = expectation_.moment(),
                                                       .objects = {{object->id, object->names}},
                                                       .places = {}}));
  if (random_.one_in(2)) wait_for_answers();
}

void Player::sync_directory() {
  Object* object = draw(ObjectKind::kDirectory);
  if (object == nullptr || random_.one_in(3)) object = &expectation_.object(Expectation::kRoot);
  Asked asked{.answer = {}, .moment = expectation_.moment(), .objects = {}, .places = {}};
  asked.places = expectation_.empty_places(object->id);
  if (object->id != Expectation::kRoot) asked.objects.emplace_back(object->id, object->names);
  for (const auto& [place, id] : expectation_.names()) {
    if (place.directory != object->id) continue;
    const Object& child = expectation_.object(id);
    const bool kept =
        child.kind == ObjectKind::kFile ? child.writers == 0 : rules_.durability != Durability::kNone;
    if (kept) asked.objects.emplace_back(id, std::set<Place>{place});
  }
  note(fmt::format("fsync directory {} as of moment {}", object->id, expectation_.moment()));
  world_.pool().disk_requests().sync_directory(ino_of(object->id), ask(std::move(asked)));
  if (random_.one_in(2)) wait_for_answers();
}

void Player::evict() {
  const uint64_t entries = 1 + random_.below(8);
  note(fmt::format("evict {} entries", entries));
  (void)world_.pool().evictor().evict_now(
      {.unit = EvictOrder::Unit::kEntries, .amount = entries, .patient = false});
  hear();
}

void Player::prefetch() {
  const Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr) return;
  std::string path;
  for (Place place = *object->names.begin();;) {
    path = path.empty() ? place.name : place.name + "/" + path;
    if (place.directory == Expectation::kRoot) break;
    place = *expectation_.object(place.directory).names.begin();
  }
  note("prefetch " + path);
  const std::array<PrefetchOrder, 1> orders = {PrefetchOrder{.name = path, .priority = 0}};
  (void)world_.pool().prefetcher().prefetch(orders);
}

void Player::pin() {
  Object* const object = draw(ObjectKind::kFile);
  if (object == nullptr) return;
  const bool pinned = random_.one_in(3);
  note(fmt::format("{} object {}", pinned ? "pin" : "unpin", object->id));
  (void)world_.pool().tree().set_pinned(object->ino, pinned);
}

void Player::operate() {
  hear();
  using Operation = void (Player::*)();
  static constexpr auto kOperations = std::to_array<Operation>({&Player::create,
                                                                &Player::create,
                                                                &Player::create,
                                                                &Player::create,
                                                                &Player::create,
                                                                &Player::overwrite,
                                                                &Player::overwrite,
                                                                &Player::read,
                                                                &Player::read,
                                                                &Player::read,
                                                                &Player::read,
                                                                &Player::truncate,
                                                                &Player::rename,
                                                                &Player::rename,
                                                                &Player::rename,
                                                                &Player::link,
                                                                &Player::unlink,
                                                                &Player::unlink,
                                                                &Player::make_directory,
                                                                &Player::remove_directory,
                                                                &Player::sync,
                                                                &Player::sync,
                                                                &Player::sync_directory,
                                                                &Player::change_attributes,
                                                                &Player::evict,
                                                                &Player::prefetch,
                                                                &Player::pin});
  (this->*kOperations[random_.below(kOperations.size())])();
  step(8);
  // Sometimes the steps suffice for fresh entries to become candidates, and for mapped files to be tried
  // again.
  if (random_.one_in(12)) step(600);
}

}  // namespace kvcachefs::test
