// The checks that old_kernel_guest.sh runs in its guest: `check COMMAND DIRECTORY [SEED]`. Exit 0 if all
// succeeded; each failed check is printed. There are 24 entries of 1 MiB and 5 bytes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr size_t kBytes = (size_t{1} << 20) + 5;
constexpr int kEntries = 24;
int failures = 0;

void expect(bool held, const std::string& what) {
  if (held) return;
  std::printf("old_kernel_guest: NOT: %s (%s)\n", what.c_str(), std::strerror(errno));
  ++failures;
}

std::string content(int seed, int number) {
  std::string bytes(kBytes, '\0');
  auto value = static_cast<uint64_t>(seed * 1000 + number + 1);
  for (char& byte : bytes) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(value >> 56);
  }
  return bytes;
}

std::string name_of(const std::string& directory, int number) {
  return directory + "/entry" + std::to_string(number);
}

bool store(const std::string& directory, int seed, int number, int flags = O_WRONLY) {
  const std::string name = name_of(directory, number), bytes = content(seed, number);
  const int fd = ::open((name + ".tmp").c_str(), O_CREAT | O_EXCL | flags, 0644);
  bool good = fd >= 0;
  for (size_t at = 0; good && at < bytes.size();) {
    const ssize_t written = ::write(fd, bytes.data() + at, bytes.size() - at);
    good = written > 0;
    if (good) at += static_cast<size_t>(written);
  }
  if (fd >= 0) good = ::close(fd) == 0 && good;
  return good && ::rename((name + ".tmp").c_str(), name.c_str()) == 0;
}

// load() returns -1 if the entry is not there, 0 if its content is wrong, 1 if it is right.
int load(const std::string& directory, int seed, int number) {
  const int fd = ::open(name_of(directory, number).c_str(), O_RDONLY);
  if (fd < 0) return errno == ENOENT ? -1 : 0;
  std::string bytes(kBytes + 1, '\0');
  size_t got = 0;
  for (ssize_t more = 1; more > 0; got += static_cast<size_t>(more > 0 ? more : 0))
    more = ::pread(fd, bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
  ::close(fd);
  bytes.resize(got);
  return bytes == content(seed, number) ? 1 : 0;
}

void store_all(const std::string& directory, int seed) {
  for (int number = 0; number < kEntries; ++number)
    expect(store(directory, seed, number, number % 3 == 2 ? O_RDWR : O_WRONLY),
           name_of(directory, number) + " stored");
}

void read_all(const std::string& directory, int seed) {
  for (int number = 0; number < kEntries; ++number)
    expect(load(directory, seed, number) == 1, name_of(directory, number) + " there and right");
}

void map_all(const std::string& directory, int seed) {
  for (int number = 0; number < kEntries; ++number) {
    const std::string right = content(seed, number);
    for (const int flags : {MAP_SHARED, MAP_PRIVATE}) {
      const int fd = ::open(name_of(directory, number).c_str(), O_RDONLY);
      void* const at = ::mmap(nullptr, kBytes, PROT_READ, flags, fd, 0);
      expect(at != MAP_FAILED && std::memcmp(at, right.data(), kBytes) == 0,
             name_of(directory, number) + (flags == MAP_SHARED ? " mapped shared" : " mapped privately"));
      if (at != MAP_FAILED) ::munmap(at, kBytes);
      ::close(fd);
    }
  }
}

// With no_page_cache the kernel refuses shared mappings.
void map_private(const std::string& directory, int seed) {
  const std::string right = content(seed, 0);
  const int fd = ::open(name_of(directory, 0).c_str(), O_RDONLY);
  expect(::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV, "ENODEV");
  void* const at = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, fd, 0);
  expect(at != MAP_FAILED && std::memcmp(at, right.data(), kBytes) == 0, "a private mapping");
  ::close(fd);
}

// A mapping, a reader and writers of each kind see the same content.
void coherent(const std::string& directory, int seed) {
  const std::string name = name_of(directory, 0);
  const int reader = ::open(name.c_str(), O_RDONLY);
  auto* const at = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, reader, 0));
  expect(at != MAP_FAILED && at[4096] == content(seed, 0)[4096], "a shared mapping");
  char mark = 'a';
  for (const int flags : {O_WRONLY, O_RDWR}) {
    const int writer = ::open(name.c_str(), flags);
    ++mark;
    expect(::pwrite(writer, &mark, 1, 4096) == 1, "a write");
    char seen = 0;
    expect(::pread(reader, &seen, 1, 4096) == 1 && seen == mark, "a read after a write");
    expect(at[4096] == mark, "a mapping after a write");
    ::close(writer);
  }
  ::munmap(at, kBytes);
  ::close(reader);
  expect(store(directory, seed, 0), "stored again");
  const int both = ::open(name.c_str(), O_RDWR);
  auto* const written =
      static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, both, 0));
  expect(written != MAP_FAILED, "a shared mapping for writing");
  if (written != MAP_FAILED) {
    written[7] = 'm';
    expect(::msync(written, 4096, MS_SYNC) == 0, "msync");
    char seen = 0;
    const int fresh = ::open(name.c_str(), O_RDONLY);
    expect(::pread(fresh, &seen, 1, 7) == 1 && seen == 'm', "a read after a write through a mapping");
    ::close(fresh);
    ::munmap(written, 4096);
  }
  ::close(both);
  expect(store(directory, seed, 0), "stored again");
}

// overfill() stores four times the pool: every store succeeds, and each entry that is there is right.
void overfill(const std::string& directory, int seed) {
  int there = 0;
  for (int number = 100; number < 100 + 4 * kEntries; ++number)
    expect(store(directory, seed, number), name_of(directory, number) + " stored in a full pool");
  for (int number = 100; number < 100 + 4 * kEntries; ++number) {
    const int found = load(directory, seed, number);
    expect(found != 0, name_of(directory, number) + " whole or gone");
    there += found == 1 ? 1 : 0;
    ::unlink(name_of(directory, number).c_str());
  }
  expect(there > 0 && there < 4 * kEntries, "some have been evicted, not all");
  std::printf("old_kernel_guest: %d of %d entries stayed\n", there, 4 * kEntries);
}

// until_it_ends() stores until the server is gone, and checks the errno. Because the stores use only a few
// names, the disk keeps other entries however long that takes.
void until_it_ends(const std::string& directory, int seed) {
  for (int number = 200;; number = number < 203 ? number + 1 : 200) {
    errno = 0;
    if (store(directory, seed, number)) continue;
    return expect(errno == ENOTCONN || errno == ECONNABORTED || errno == EIO,
                  "the error of a store without a server");
  }
}

// rates() prints the times for the pool and a plain tmpfs, in turns. In a guest without KVM they compare
// copies and requests, but are no real times.
void rates(const std::string& directory, int seed) {
  const auto seconds = [](const std::function<void()>& act) {
    timespec begin{}, end{};
    ::clock_gettime(CLOCK_MONOTONIC, &begin);
    act();
    ::clock_gettime(CLOCK_MONOTONIC, &end);
    return static_cast<double>(end.tv_sec - begin.tv_sec) +
           static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e9;
  };
  std::map<std::string, std::vector<double>> took;
  const std::string bytes = content(seed, 0);
  std::string memory(kBytes, '\0');
  for (int round = 0; round < 3; ++round)
    for (const std::string& place : {directory, std::string("/shm")}) {
      const std::string name = place + "/rate";
      took["store " + place].push_back(seconds([&] {
        const int fd = ::open(name.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
        for (int piece = 0; piece < 16; ++piece)
          expect(::write(fd, bytes.data(), 1 << 20) == 1 << 20, "a write");
        ::close(fd);
      }));
      took["read " + place].push_back(seconds([&] {
        const int fd = ::open(name.c_str(), O_RDONLY);
        for (int piece = 0; piece < 16; ++piece)
          expect(::read(fd, memory.data(), 1 << 20) == 1 << 20, "a read");
        ::close(fd);
      }));
      ::unlink(name.c_str());
    }
  for (auto& [what, times] : took)
    std::printf("old_kernel_guest: %s: 16 MiB in %.1f, %.1f, %.1f ms\n", what.c_str(), times[0] * 1e3,
                times[1] * 1e3, times[2] * 1e3);
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) return 2;
  const std::string command = words[1], directory = words[2];
  const int seed = count > 3 ? std::atoi(words[3]) : 1;
  const std::map<std::string, void (*)(const std::string&, int)> commands = {
      {"store", store_all},
      {"read", read_all},
      {"map", map_all},
      {"rates", rates},
      {"coherent", coherent},
      {"overfill", overfill},
      {"map_private", map_private},
      {"until_it_ends", until_it_ends}};
  const auto found = commands.find(command);
  if (found == commands.end()) return 2;
  found->second(directory, seed);
  return failures == 0 ? 0 : 1;
}
