#include "tests/support/files.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <thread>

#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written <= 0) return written == 0 ? EIO : errno;
    content.remove_prefix(written);
  }
  return 0;
}

int run_and_exit(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
    return 255;
  }
}

}  // namespace

int error_of(long result) {
  return result < 0 ? errno : 0;
}

std::string error_name(int error) {
  if (error == 0) return "ok";
  const char* name = ::strerrorname_np(error);
  return name == nullptr ? std::to_string(error) : name;
}

File::File(const std::string& path, int flags, mode_t mode)
    : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
  if (fd_ < 0) fail("open " + path);
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void File::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Mapping::Mapping(int fd, size_t bytes, int protection, int flags) : bytes_(bytes), at_(nullptr) {
  void* at = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (at != MAP_FAILED) at_ = static_cast<char*>(at);
}

Mapping::~Mapping() {
  if (valid()) ::munmap(at_, bytes_);
}

std::string read_at(int fd, off_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t got = ::pread(fd, text.data(), bytes, offset);
  if (got < 0) return error_name(error_of(got));
  text.resize(got);
  return text;
}

std::string read_file(const std::string& path) {
  std::string content;
  errno = load(path, &content);
  if (errno != 0) fail("read " + path);
  return content;
}

void write_file(const std::string& path, std::string_view content, mode_t mode) {
  File file(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
  errno = write_all(file.fd(), content);
  if (errno != 0) fail("write " + path);
}

int write_once(const std::string& path, std::string_view content) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const ssize_t written = ::write(fd, content.data(), content.size());
  int error = written < 0 ? errno : 0;
  if (written >= 0 && static_cast<size_t>(written) != content.size()) error = EIO;
  if (::close(fd) != 0 && error == 0) error = errno;
  return error;
}

int store(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  int error = write_all(fd, content);
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(temporary.c_str());
  return error;
}

int load(const std::string& path, std::string* content) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  if (content != nullptr) content->clear();
  std::string piece(size_t{1} << 18, '\0');
  int error = 0;
  for (;;) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got < 0) error = errno;
    if (got <= 0) break;
    if (content != nullptr) content->append(piece, 0, got);
  }
  ::close(fd);
  return error;
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

void make_directory(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0) fail("mkdir " + path);
}

std::vector<std::string> list(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string xattr(const std::string& path, const std::string& name) {
  std::string value(size_t{1} << 16, '\0');
  const ssize_t size = ::getxattr(path.c_str(), name.c_str(), value.data(), value.size());
  if (size < 0) fail("getxattr " + name + " of " + path);
  value.resize(size);
  return value;
}

int set_xattr(const std::string& path, const std::string& name, std::string_view value) {
  return error_of(::setxattr(path.c_str(), name.c_str(), value.data(), value.size(), 0));
}

std::map<std::string, std::string> parse_stats(std::string_view text) {
  std::map<std::string, std::string> values;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space != std::string::npos) values[line.substr(0, space)] = line.substr(space + 1);
  }
  return values;
}

double seconds_of(const std::function<void()>& act) {
  const auto begun = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

uint64_t Random::next() {
  // splitmix64: any seed, including 0, gives a good stream.
  state_ += 0x9e3779b97f4a7c15;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

std::string pattern(uint64_t seed, size_t bytes) {
  std::string content(bytes, '\0');
  Random random(seed);
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = random.next();
    std::memcpy(content.data() + at, &word, std::min(sizeof(word), bytes - at));
  }
  return content;
}

std::string difference(uint64_t seed, std::string_view content) {
  const std::string expected = pattern(seed, content.size());
  const auto [have, want] = std::mismatch(content.begin(), content.end(), expected.begin());
  if (have == content.end()) return "";
  return "byte " + std::to_string(have - content.begin()) + " of " + std::to_string(content.size()) + " is " +
         std::to_string(static_cast<unsigned char>(*have)) + " instead of " +
         std::to_string(static_cast<unsigned char>(*want));
}

int in_child(const std::function<int()>& body, std::chrono::milliseconds deadline) {
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork");
  if (pid == 0) ::_exit(run_and_exit(body));
  int status = 0;
  if (!eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, deadline)) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int as_user(uid_t uid, gid_t gid, const std::function<int()>& body) {
  return in_child([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(gid, gid, gid) != 0 || ::setresuid(uid, uid, uid) != 0) {
      return 254;
    }
    return body();
  });
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  auto pause = std::chrono::microseconds(200);
  for (;;) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
}

}  // namespace kvcachefs::test
