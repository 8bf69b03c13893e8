#include "tests/model/operation.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

namespace kvcachefs::test {
namespace {

constexpr size_t kFileBytesMax = 300'000;

constexpr const char* kKindNames[] = {"open",        "close",    "read",   "write",   "append",   "truncate",
                                      "ftruncate",   "allocate", "punch",  "zero",    "mapwrite", "mapread",
                                      "fsync",       "copy",     "rename", "link",    "unlink",   "symlink",
                                      "mkdir",       "rmdir",    "chmod",  "utimens", "setxattr", "getxattr",
                                      "removexattr", "list",     "stat",   "content", "fstat"};
static_assert(std::size(kKindNames) == static_cast<size_t>(Kind::kCount));

std::string outcome(long result) {
  const int error = error_of(result);
  return error == 0 ? std::to_string(result) : error_name(error);
}

// The size and hash of these bytes.
std::string digest(std::string_view bytes) {
  return std::to_string(bytes.size()) + " bytes #" + std::to_string(std::hash<std::string_view>()(bytes));
}

std::string status_text(const struct stat& status) {
  char text[128];
  const long size = S_ISDIR(status.st_mode) ? 0 : static_cast<long>(status.st_size);
  std::snprintf(text, sizeof(text), "mode %o links %ld size %ld", status.st_mode,
                static_cast<long>(status.st_nlink), size);
  return text;
}

std::string file_digest(const std::string& path) {
  std::string content;
  const int error = load(path, &content);
  return error == 0 ? digest(content) : error_name(error);
}

// A few names in a few directories, so that operations meet; one name in ten may be of the wrong kind.
std::string draw_name(Random& random, char kind) {
  static constexpr const char* kFolders[] = {"", "", "", "d0/", "d1/", "d0/d2/"};
  static constexpr char kKinds[] = {'f', 'd', 's'};
  const char letter = random.one_in(10) ? kKinds[random.below(std::size(kKinds))] : kind;
  const uint64_t names = letter == 'f' ? 5 : letter == 'd' ? 3 : 1;
  return std::string(kFolders[random.below(std::size(kFolders))]) + letter +
         std::to_string(random.below(names));
}

char kind_of_name(Kind kind) {
  switch (kind) {
    case Kind::kMakeDirectory:
    case Kind::kRemoveDirectory:
    case Kind::kList:
      return 'd';
    default:
      return 'f';
  }
}

// Lengths at and near the borders of pages, and any other.
size_t draw_length(Random& random) {
  switch (random.below(4)) {
    case 0:
      return random.below(100);
    case 1:
      return (random.below(20) * 4096) + random.below(3);
    case 2:
      return (random.below(20) + 1) * 4096 - random.below(3);
    default:
      return random.below(kFileBytesMax / 2);
  }
}

int draw_flags(Kind kind, Random& random) {
  static constexpr int kOpenFlags[] = {O_RDONLY,
                                       O_RDWR,
                                       O_RDWR | O_CREAT,
                                       O_RDWR | O_CREAT,
                                       O_RDWR | O_CREAT | O_EXCL,
                                       O_RDWR | O_CREAT | O_TRUNC,
                                       O_WRONLY | O_CREAT | O_APPEND,
                                       O_RDWR | O_CREAT | O_DIRECT,
                                       O_RDWR | O_TRUNC,
                                       O_RDONLY | O_DIRECTORY,
                                       O_RDONLY | O_NOFOLLOW};
  static constexpr int kRenameFlags[] = {0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
  static constexpr int kXattrFlags[] = {0, 0, XATTR_CREATE, XATTR_REPLACE};
  static constexpr int kModes[] = {0644, 0600, 0755, 0444, 0777};
  switch (kind) {
    case Kind::kOpen:
      return kOpenFlags[random.below(std::size(kOpenFlags))];
    case Kind::kRename:
      return kRenameFlags[random.below(std::size(kRenameFlags))];
    case Kind::kSetXattr:
      return kXattrFlags[random.below(std::size(kXattrFlags))];
    case Kind::kChangeMode:
      return kModes[random.below(std::size(kModes))];
    case Kind::kAllocate:
      return random.one_in(2) ? FALLOC_FL_KEEP_SIZE : 0;
    default:
      return 0;
  }
}

}  // namespace

std::string Operation::text() const {
  char numbers[128];
  std::snprintf(numbers, sizeof(numbers), " slot %d/%d flags %o offset %ld bytes %zu", slot, other_slot,
                flags, static_cast<long>(offset), bytes);
  return std::string(kKindNames[static_cast<int>(kind)]) + " " + name + " " + other + numbers;
}

Operation draw(Random& random) {
  // Opens and writes are drawn more often than the rest; otherwise most slots and most files would be empty.
  static constexpr Kind kOften[] = {Kind::kOpen, Kind::kWrite, Kind::kRead, Kind::kMapWrite,
                                    Kind::kTruncateOpen};
  Operation operation;
  operation.kind = random.one_in(3) ? kOften[random.below(std::size(kOften))]
                                    : static_cast<Kind>(random.below(static_cast<uint64_t>(Kind::kCount)));
  operation.name = draw_name(
      random, random.one_in(8) && operation.kind == Kind::kRename ? 'd' : kind_of_name(operation.kind));
  operation.other = draw_name(
      random, operation.kind == Kind::kSymlink ? 's' : operation.name[operation.name.find_last_of('/') + 1]);
  operation.slot = static_cast<int>(random.below(kSlots));
  operation.other_slot = static_cast<int>(random.below(kSlots));
  operation.flags = draw_flags(operation.kind, random);
  operation.offset = static_cast<off_t>(random.one_in(3) ? 0 : draw_length(random));
  operation.bytes = draw_length(random);
  operation.seed = random.next();
  return operation;
}

std::string Side::apply(const Operation& operation) {
  switch (operation.kind) {
    case Kind::kOpen: {
      const int fd = ::open(path(operation.name).c_str(), operation.flags | O_CLOEXEC, 0644);
      if (fd < 0) return error_name(error_of(fd));
      open_[operation.slot].emplace(fd);
      return "opened";
    }
    case Kind::kClose:
      open_[operation.slot].reset();
      return "closed";
    case Kind::kCopyRange:
      return copy_range(operation);
    case Kind::kRead:
    case Kind::kWrite:
    case Kind::kAppend:
    case Kind::kTruncateOpen:
    case Kind::kAllocate:
    case Kind::kPunch:
    case Kind::kZero:
    case Kind::kMapWrite:
    case Kind::kMapRead:
    case Kind::kSync:
    case Kind::kStatusOpen:
      return open_[operation.slot] ? on_open_file(operation) : "nothing open";
    case Kind::kChangeMode:
    case Kind::kSetTimes:
    case Kind::kSetXattr:
    case Kind::kGetXattr:
    case Kind::kRemoveXattr:
      return on_attribute(operation);
    default:
      return on_name(operation);
  }
}

std::string Side::on_open_file(const Operation& operation) {
  const int fd = open_[operation.slot]->fd();
  const off_t length = static_cast<off_t>(std::max<size_t>(operation.bytes, 1));
  switch (operation.kind) {
    case Kind::kRead:
      return digest(read_at(fd, operation.offset, operation.bytes));
    case Kind::kWrite: {
      const std::string content = pattern(operation.seed, operation.bytes);
      return outcome(::pwrite(fd, content.data(), content.size(), operation.offset));
    }
    case Kind::kAppend: {
      // Appends stop at a limit, because repeated appends must not fill the pool.
      if (::lseek(fd, 0, SEEK_END) > static_cast<off_t>(kFileBytesMax)) return "large enough";
      const std::string content = pattern(operation.seed, operation.bytes);
      return outcome(::write(fd, content.data(), content.size()));
    }
    case Kind::kTruncateOpen:
      return outcome(::ftruncate(fd, static_cast<off_t>(operation.bytes)));
    case Kind::kAllocate:
      return outcome(::fallocate(fd, operation.flags, operation.offset, length));
    case Kind::kPunch:
      return outcome(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, operation.offset, length));
    case Kind::kZero:
      return outcome(::fallocate(fd, FALLOC_FL_ZERO_RANGE, operation.offset, length));
    case Kind::kMapWrite:
    case Kind::kMapRead:
      return map(operation, operation.kind == Kind::kMapWrite);
    case Kind::kSync:
      return outcome(operation.flags % 2 == 0 ? ::fsync(fd) : ::fdatasync(fd));
    default: {
      struct stat status {};
      const int error = error_of(::fstat(fd, &status));
      return error == 0 ? status_text(status) : error_name(error);
    }
  }
}

// The mapping is used only inside the file, because each file system treats a store behind its end in its own
// way.
std::string Side::map(const Operation& operation, bool write) {
  const int fd = open_[operation.slot]->fd();
  struct stat status {};
  if (::fstat(fd, &status) != 0) return error_name(error_of(-1));
  if (!S_ISREG(status.st_mode)) return "no file";
  const size_t size = static_cast<size_t>(status.st_size);
  if (size == 0) return "empty";
  const Mapping mapping(fd, size, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED);
  if (!mapping.valid()) return "refused";
  const size_t from = static_cast<size_t>(operation.offset) % size;
  const size_t length = std::min(operation.bytes, size - from);
  if (!write) return digest(mapping.text().substr(from, length));
  const std::string content = pattern(operation.seed, length);
  std::memcpy(mapping.data() + from, content.data(), length);
  return "stored " + std::to_string(length);
}

std::string Side::copy_range(const Operation& operation) {
  if (!open_[operation.slot] || !open_[operation.other_slot]) return "nothing open";
  off_t from = operation.offset;
  off_t to = static_cast<off_t>(operation.seed % kFileBytesMax);
  return outcome(::copy_file_range(open_[operation.slot]->fd(), &from, open_[operation.other_slot]->fd(), &to,
                                   operation.bytes, 0));
}

std::string Side::on_name(const Operation& operation) {
  const std::string name = path(operation.name);
  const std::string other = path(operation.other);
  switch (operation.kind) {
    case Kind::kTruncate:
      return outcome(::truncate(name.c_str(), static_cast<off_t>(operation.bytes)));
    case Kind::kRename:
      return outcome(::renameat2(AT_FDCWD, name.c_str(), AT_FDCWD, other.c_str(), operation.flags));
    case Kind::kLink:
      return outcome(::link(name.c_str(), other.c_str()));
    case Kind::kUnlink:
      return outcome(::unlink(name.c_str()));
    case Kind::kSymlink:
      return outcome(::symlink(operation.name.c_str(), other.c_str()));
    case Kind::kMakeDirectory:
      return outcome(::mkdir(name.c_str(), 0755));
    case Kind::kRemoveDirectory:
      return outcome(::rmdir(name.c_str()));
    case Kind::kContent:
      return file_digest(name);
    case Kind::kList: {
      std::error_code error;
      std::vector<std::string> names;
      for (const auto& entry : std::filesystem::directory_iterator(name, error)) {
        names.push_back(entry.path().filename());
      }
      if (error) return error_name(error.value());
      std::sort(names.begin(), names.end());
      std::string text;
      for (const std::string& found : names) text += found + " ";
      return text;
    }
    default: {
      struct stat status {};
      const int error = error_of(::lstat(name.c_str(), &status));
      return error == 0 ? status_text(status) : error_name(error);
    }
  }
}

std::string Side::on_attribute(const Operation& operation) {
  const std::string name = path(operation.name);
  const std::string attribute = "user.a" + std::to_string(operation.slot);
  switch (operation.kind) {
    case Kind::kChangeMode:
      return outcome(::chmod(name.c_str(), static_cast<mode_t>(operation.flags)));
    case Kind::kSetTimes: {
      const timespec times[2] = {{static_cast<time_t>(operation.bytes), 1}, {operation.offset, UTIME_OMIT}};
      return outcome(::utimensat(AT_FDCWD, name.c_str(), times, AT_SYMLINK_NOFOLLOW));
    }
    case Kind::kSetXattr: {
      const std::string value = pattern(operation.seed, operation.bytes % 5000);
      return outcome(
          ::setxattr(name.c_str(), attribute.c_str(), value.data(), value.size(), operation.flags));
    }
    case Kind::kGetXattr: {
      std::string value(5000, '\0');
      const ssize_t size = ::getxattr(name.c_str(), attribute.c_str(), value.data(), value.size());
      return size < 0 ? error_name(error_of(size)) : digest(std::string_view(value).substr(0, size));
    }
    default:
      return outcome(::removexattr(name.c_str(), attribute.c_str()));
  }
}

std::string Side::tree() const {
  std::string text;
  std::vector<std::string> open_folders = {directory_};
  while (!open_folders.empty()) {
    const std::string folder = open_folders.back();
    open_folders.pop_back();
    for (const std::string& name : list(folder)) {
      const std::string found = folder + "/" + name;
      struct stat status {};
      if (::lstat(found.c_str(), &status) != 0) return found + " is listed but not there";
      text += found.substr(directory_.size()) + ": " + status_text(status);
      if (S_ISREG(status.st_mode)) text += " " + file_digest(found);
      text += "\n";
      if (S_ISDIR(status.st_mode)) open_folders.push_back(found);
    }
  }
  return text;
}

}  // namespace kvcachefs::test
