#include "tests/crash/kill_load.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace kvcachefs::test {
namespace {

constexpr unsigned kNames = 48;
constexpr size_t kEvents = 30;
constexpr std::string_view kTemporary = ".tmp";
constexpr uint64_t kMagic = 0x6b696c6c74657374;

struct Header {
  uint64_t magic = kMagic;
  uint64_t version = 0;
  uint64_t length = 0;
  uint64_t name = 0;
};

uint64_t number_of(std::string_view name) {
  uint64_t number = 0;
  for (const char c : name) number = number * 131 + static_cast<unsigned char>(c);
  return number;
}

std::string make_content(const std::string& name, uint64_t version, size_t length) {
  std::string content = pattern(number_of(name) ^ version << 32 ^ length, length);
  const Header header{.version = version, .length = length, .name = number_of(name)};
  std::memcpy(content.data(), &header, sizeof header);
  return content;
}

// The name that a file's content contains, also while the file has its temporary name.
std::string told_name(const std::string& name) {
  return name.ends_with(kTemporary) ? name.substr(0, name.size() - kTemporary.size()) : name;
}

std::string words(const std::set<uint64_t>& outcomes) {
  std::string text;
  for (const uint64_t version : outcomes)
    text += (text.empty() ? "" : ", ") + (version == 0 ? "absent" : "version " + std::to_string(version));
  return text;
}

}  // namespace

void KillLoad::problem(const std::string& text) {
  problems_.push_back(directory() + ": " + text);
}

void KillLoad::note(const std::string& name, const std::string& event) {
  std::deque<std::string>& events = events_[told_name(name)];
  events.push_back(std::to_string(operations_) + ": " + (name.ends_with(kTemporary) ? "temporary " : "") +
                   event);
  if (events.size() > kEvents) events.pop_front();
}

bool KillLoad::failed(const std::string& call, const std::string& name) {
  const int error = errno;
  note(name, call + " failed: " + error_name(error));
  if (surroundings_.killed->load())
    over_ = true;
  else if (error == ENOSPC)
    ++refused_;
  else
    problem(call + " of " + name + ": " + error_name(error));
  return true;
}

// changing() notes that the name is about to get this version: a crash from here on may leave the old outcome
// or this one.
void KillLoad::changing(const std::string& name, uint64_t version) {
  Name& known = names_[name];
  known.now.insert(version);
  known.after.insert(version);
  known.moved = 0;
  // Only a pool that promises nothing may discard content that only memory has.
  known.may_vanish = surroundings_.durability == Durability::kNone;
  if (!known.may_vanish) return;
  known.now.insert(kAbsent);
  known.after.insert(kAbsent);
}

std::string KillLoad::history(const std::string& name) {
  std::string text = "; the last acknowledgement was in operation " + std::to_string(last_commit_);
  for (const std::string& event : events_[told_name(name)]) text += "\n  " + event;
  return text;
}

void KillLoad::committed() {
  last_commit_ = operations_;
  ++acknowledged_;
  for (auto& [name, known] : names_) {
    known.now = known.after;
    known.moved = 0;
  }
}

void KillLoad::acknowledge(const std::string& name) {
  note(name, "acknowledged");
  Name& known = names_[name];
  known.after = {known.live};
  known.may_vanish = false;
  committed();
}

std::string KillLoad::draw_name() {
  const uint64_t number = random_.below(kNames);
  const std::string folder = number % 3 == 0 ? "/deep/er" : "";
  return directory() + folder + "/e" + std::to_string(number);
}

size_t KillLoad::draw_size() {
  constexpr size_t kPage = 4096;
  switch (random_.below(4)) {
    case 0:
      return sizeof(Header) + random_.below(kPage);
    case 1:
      return kPage * (1 + random_.below(32));
    case 2:
      return 64 * 1024 * (1 + random_.below(8));
    default:
      return sizeof(Header) + random_.below(1 << 20);
  }
}

bool KillLoad::write_all(int fd, const std::string& content) {
  for (size_t at = 0; at < content.size();) {
    const size_t piece = std::min<size_t>(content.size() - at, 1 + random_.below(256 * 1024));
    const ssize_t count = ::pwrite(fd, content.data() + at, piece, static_cast<off_t>(at));
    if (count <= 0) return false;
    at += static_cast<size_t>(count);
  }
  // The old content may have been longer.
  return ::ftruncate(fd, static_cast<off_t>(content.size())) == 0;
}

// write_content() returns false if the client cannot go on with this name.
bool KillLoad::write_content(const std::string& name, const std::string& told, int flags) {
  Name& known = names_[name];
  const bool might_have_vanished = known.may_vanish;
  const uint64_t version = next_version_++;
  const std::string content = make_content(told, version, draw_size());
  changing(name, version);
  const int fd = ::open(path(name).c_str(), flags | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) {
    if (errno != ENOENT || !might_have_vanished) return !failed("open", name);
    known.live = kAbsent;
    return false;
  }
  known.live = version;
  note(name, "opened to write version " + std::to_string(version));
  if (!write_all(fd, content)) {
    (void)failed("write", name);
    // The name is removed before the close, which would make the partial content an entry.
    known.now.insert(kAbsent);
    known.live = kAbsent;
    if (::unlink(path(name).c_str()) == 0)
      known.after = {kAbsent};
    else
      (void)failed("unlink", name);
    (void)::close(fd);
    return false;
  }
  if (random_.one_in(3)) {
    if (::fsync(fd) != 0) {
      (void)failed("fsync", name);
      (void)::close(fd);
      return !over_;
    }
    acknowledge(name);
  }
  if (::close(fd) != 0) return !failed("close", name);
  if (surroundings_.durability == Durability::kSync) acknowledge(name);
  return true;
}

void KillLoad::store() {
  const std::string name = draw_name();
  const std::string temporary = name + std::string(kTemporary);
  if (!write_content(temporary, name, O_CREAT | O_TRUNC)) return;
  Name& from = names_[temporary];
  Name& to = names_[name];
  const uint64_t version = from.live;
  const bool promised = from.after == Outcomes{version};
  from.now.insert(kAbsent);
  if (promised) {
    to.now.insert(version);
    to.moved = version;
  } else {
    changing(name, version);
    // The new name gets what the disk has of the file so far, which may be older.
    to.now.insert(from.after.begin(), from.after.end());
    to.after.insert(from.after.begin(), from.after.end());
  }
  if (::rename(path(temporary).c_str(), path(name).c_str()) != 0) {
    // The pool cannot have discarded an entry that it promised to keep.
    if (errno != ENOENT || !from.may_vanish) return (void)failed("rename", temporary);
    note(temporary, "has vanished");
    from.live = kAbsent;
    return;
  }
  note(name, "renamed to, version " + std::to_string(version));
  from.live = kAbsent;
  from.after = {kAbsent};
  from.may_vanish = false;
  to.live = version;
  to.may_vanish = to.may_vanish && !promised;
  if (promised) to.after = {version};
  if (surroundings_.durability == Durability::kSync) acknowledge(name);
}

void KillLoad::write_in_place() {
  const std::string name = draw_name();
  if (names_[name].live == kAbsent) return;
  // A crash during a write without O_TRUNC must not leave a mixture, either.
  (void)write_content(name, name, random_.one_in(2) ? O_TRUNC : 0);
}

void KillLoad::remove() {
  const std::string name = draw_name();
  Name& known = names_[name];
  const bool there = known.live != kAbsent;
  known.now.insert(kAbsent);
  known.moved = 0;
  if (::unlink(path(name).c_str()) == 0) {
    note(name, "unlinked");
    if (!there) problem(name + " was there to be removed");
  } else if (errno != ENOENT || (there && !known.may_vanish)) {
    (void)failed("unlink", name);
    return;
  }
  known.live = kAbsent;
  known.after = {kAbsent};
}

void KillLoad::read() {
  const std::string name = draw_name();
  Name& known = names_[name];
  std::string content;
  const int error = load(path(name), &content);
  if (error == ENOENT && (known.live == kAbsent || known.may_vanish)) {
    if (known.live != kAbsent) note(name, "has vanished");
    known.live = kAbsent;
    return;
  }
  if (error != 0) {
    errno = error;
    (void)failed("read", name);
    return;
  }
  std::string why;
  const uint64_t version = version_of(name, content, why);
  if (!why.empty()) problem(name + " reads " + why);
  if (version != known.live)
    problem(name + " reads version " + std::to_string(version) + " instead of " + words({known.live}));
}

void KillLoad::sync_directory() {
  const std::string folder = directory() + (random_.one_in(3) ? "/deep/er" : "");
  const int fd = ::open(path(folder).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return (void)failed("open", folder);
  const File file(fd);
  if (::fsync(fd) != 0) return (void)failed("fsync", folder);
  for (auto& [name, known] : names_) {
    if (name.substr(0, name.rfind('/')) != folder || known.live == kAbsent) continue;
    struct stat attributes {};
    const bool vanished = ::stat(path(name).c_str(), &attributes) != 0;
    if (vanished && !(errno == ENOENT && known.may_vanish)) return (void)failed("stat", name);
    if (vanished) known.live = kAbsent;
    known.after = {known.live};
    known.may_vanish = false;
    note(name, "synced with its directory: " + words(known.after));
  }
  committed();
}

void KillLoad::step() {
  ++operations_;
  const uint64_t draw = random_.below(100);
  if (draw < 45) return store();
  if (draw < 60) return write_in_place();
  if (draw < 70) return remove();
  if (draw < 98) return read();
  sync_directory();
}

void KillLoad::run(const Surroundings& surroundings) {
  surroundings_ = surroundings;
  over_ = false;
  std::error_code error;
  std::filesystem::create_directories(path(directory()) + "/deep/er", error);
  while (!over_ && problems_.empty() && !surroundings_.stop->load()) step();
}

uint64_t KillLoad::version_of(const std::string& name, const std::string& content, std::string& why) const {
  Header header;
  if (content.size() < sizeof header) {
    why = "only " + std::to_string(content.size()) + " bytes";
    return kAbsent;
  }
  std::memcpy(&header, content.data(), sizeof header);
  const std::string told = told_name(name);
  if (header.magic != kMagic || header.name != number_of(told))
    why = "what is not its content";
  else if (header.length != content.size())
    why = "version " + std::to_string(header.version) + " with " + std::to_string(content.size()) + " of " +
          std::to_string(header.length) + " bytes";
  else if (content != make_content(told, header.version, content.size()))
    why = "version " + std::to_string(header.version) + " with other bytes";
  return header.version;
}

void KillLoad::verify_name(const std::string& name, Name& known) {
  std::string content;
  const int error = load(path(name), &content);
  uint64_t version = kAbsent;
  if (error == 0) {
    std::string why;
    version = version_of(name, content, why);
    if (!why.empty()) problem(name + " came back as " + why);
    ++found_;
  } else if (error != ENOENT) {
    problem(name + " came back, but " + error_name(error));
  }
  if (!known.now.contains(version))
    problem(name + " came back as " + words({version}) + ", but should be " + words(known.now) +
            history(name));
  note(name, "came back as " + words({version}));
  known.live = version;
}

void KillLoad::verify(const std::string& pool) {
  surroundings_.pool = pool;
  found_ = 0;
  std::error_code error;
  for (const auto& item : std::filesystem::recursive_directory_iterator(path(directory()), error)) {
    const std::string name = item.path().string().substr(pool.size() + 1);
    if (!item.is_directory() && !names_.contains(name)) problem(name + " came from nowhere");
  }
  for (auto& [name, known] : names_) verify_name(name, known);
  for (auto& [name, known] : names_) {
    if (known.moved != 0 && known.live != known.moved &&
        names_[name + std::string(kTemporary)].live != known.moved)
      problem(name + ": version " + std::to_string(known.moved) + " was acknowledged and is nowhere" +
              history(name));
  }
  for (auto& [name, known] : names_) {
    known.now = known.after = {known.live};
    known.may_vanish = false;
    known.moved = 0;
  }
}

void KillLoad::stopped_cleanly() {
  if (surroundings_.durability == Durability::kNone) return;
  for (auto& [name, known] : names_) known.now = known.after = {known.live};
}

}  // namespace kvcachefs::test
