// Small helpers over system calls for the tests. Any thread. A failure that a test does not expect throws
// std::system_error with the path, so that no helper fails silently.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcachefs::test {

// 0 if the call went well, else its errno: EXPECT_EQ(error_of(::unlink(name)), ENOENT).
int error_of(long result);
// The name of an errno, as ENOENT; "ok" for 0, the number for an errno without a name.
std::string error_name(int error);

// A File owns a descriptor; the constructor throws if the open fails.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0644);
  explicit File(int fd) : fd_(fd) {}
  ~File() { close(); }
  File(File&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File& operator=(File&& other) noexcept;
  int fd() const { return fd_; }
  void close();
  int release() { return std::exchange(fd_, -1); }  // the caller closes it

 private:
  int fd_ = -1;
};

// A Mapping owns a mapping of the first bytes of a file; data() may be used only if valid() is true.
class Mapping {
 public:
  Mapping(int fd, size_t bytes, int protection, int flags);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool valid() const { return at_ != nullptr; }
  char* data() const { return at_; }
  size_t bytes() const { return bytes_; }
  std::string_view text() const { return {at_, bytes_}; }

 private:
  size_t bytes_;
  char* at_;
};

// One pread(2): the bytes read, or the name of its error.
std::string read_at(int fd, off_t offset, size_t bytes);
std::string read_file(const std::string& path);
void write_file(const std::string& path, std::string_view content, mode_t mode = 0644);
// One write(2) of all of `content` to an existing file, without O_TRUNC, as control files are written.
// Returns 0 or the errno of open, write or close; EIO for a short write.
int write_once(const std::string& path, std::string_view content);
// store() stores a file as clients do: PATH.tmp, write, close, rename. Returns 0 or the first errno.
int store(const std::string& path, std::string_view content);
// load() reads all of a file; returns 0 and sets the content, if it is asked for, or the errno of open or
// read.
int load(const std::string& path, std::string* content = nullptr);

bool exists(const std::string& path);
void make_directory(const std::string& path, mode_t mode = 0755);
std::vector<std::string> list(const std::string& directory);
std::string xattr(const std::string& path, const std::string& name);
int set_xattr(const std::string& path, const std::string& name, std::string_view value);
// The values of `name value` lines, by name.
std::map<std::string, std::string> parse_stats(std::string_view text);

// `bytes` bytes that depend on the seed and on their position: a piece from another position does not match.
std::string pattern(uint64_t seed, size_t bytes);
// Empty if `content` is pattern(seed, content.size()); else the first byte that differs, and how.
std::string difference(uint64_t seed, std::string_view content);

// in_child() runs `body` in a forked child, for calls that may hang or that another process has to make.
// Returns the body's result (0..255), 128 + signal, or -1 if the child was killed at the deadline.
int in_child(const std::function<int()>& body, std::chrono::milliseconds deadline = std::chrono::seconds(60));
// The same as user `uid` with group `gid` and no other groups.
int as_user(uid_t uid, gid_t gid, const std::function<int()>& body);

double seconds_of(const std::function<void()>& act);

// Seeded numbers that are the same on every machine, unlike those of std::uniform_int_distribution.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  uint64_t below(uint64_t bound) { return next() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace kvcachefs::test
