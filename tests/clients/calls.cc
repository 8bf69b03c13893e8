#include "tests/clients/calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>

namespace kvcachefs::clients {

Outcome failed(const char* call, const std::string& path, long result) {
  const std::string what = result < 0 ? std::strerror(static_cast<int>(-result)) : std::to_string(result);
  return {Outcome::Kind::kFailed, std::string(call) + " " + path + ": " + what};
}

Outcome missed_or_failed(const char* call, const std::string& path, long result) {
  if (result == -ENOENT) return {Outcome::Kind::kMiss};
  return failed(call, path, result);
}

Outcome make_directories(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash != 0) {
    const std::string parent = path.substr(0, slash);
    const long found = exists(parent);
    if (found < 0) return failed("stat", parent, found);
    if (found == 0) {
      if (Outcome outcome = make_directories(parent); !outcome.done()) return outcome;
    }
  }
  const long made = result_of(::mkdir(path.c_str(), 0777));
  if (made == 0) return {};
  struct stat status {};
  if (made == -EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return {};
  return failed("mkdir", path, made);
}

long exists(const std::string& path) {
  struct stat status {};
  const long found = result_of(::stat(path.c_str(), &status));
  if (found == 0) return 1;
  return found == -ENOENT ? 0 : found;
}

Outcome list_names(const std::string& directory, std::vector<std::string>& names) {
  DIR* const stream = ::opendir(directory.c_str());
  if (stream == nullptr) return failed("opendir", directory, result_of(-1));
  // readdir reports an error by errno only.
  for (errno = 0;; errno = 0) {
    const dirent* const entry = ::readdir(stream);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int error = errno;
  ::closedir(stream);
  return error == 0 ? Outcome{} : failed("readdir", directory, -error);
}

long write_all(int fd, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const long written = result_of(::write(fd, bytes.data() + done, bytes.size() - done));
    if (written <= 0) return written;
    done += static_cast<size_t>(written);
  }
  return static_cast<long>(done);
}

long read_all(int fd, std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const long got = result_of(::read(fd, bytes.data() + done, bytes.size() - done));
    if (got < 0) return got;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<long>(done);
}

long close_fd(int fd) {
  return result_of(::close(fd));
}

std::string hash_name(uint64_t key) {
  char name[65];
  uint64_t word = key;
  for (int part = 0; part < 4; ++part) {
    word = (word + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    word ^= word >> 31;
    std::snprintf(name + part * 16, 17, "%016llx", static_cast<unsigned long long>(word));
  }
  return name;
}

uint64_t random_number() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32) | device();
  }()};
  return generator() >> 1;
}

}  // namespace kvcachefs::clients
