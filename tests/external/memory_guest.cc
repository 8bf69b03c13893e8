// The parts that memory_guest.sh runs in its guest: `check store|whole|take ...`. Entries have 1 MiB each.
// Exit 0 if all went well.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string content(int number) {
  std::string bytes(kMiB, '\0');
  auto value = static_cast<uint64_t>(number + 1);
  for (size_t at = 0; at < bytes.size(); at += sizeof value) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(&bytes[at], &value, sizeof value);
  }
  return bytes;
}

std::string name_of(const std::string& directory, int number) {
  return directory + "/entry" + std::to_string(number);
}

int store(const std::string& directory, int count) {
  for (int number = 0; number < count; ++number) {
    const int fd = ::open(name_of(directory, number).c_str(), O_WRONLY | O_CREAT, 0644);
    if (fd < 0 || ::write(fd, content(number).data(), kMiB) != static_cast<ssize_t>(kMiB)) return 1;
    ::close(fd);
  }
  return 0;
}

// What is left has to be right; prints how much that is.
int whole(const std::string& directory, int count) {
  int there = 0;
  std::string bytes(kMiB, '\0');
  for (int number = 0; number < count; ++number) {
    const int fd = ::open(name_of(directory, number).c_str(), O_RDONLY);
    if (fd < 0) continue;
    if (::read(fd, bytes.data(), kMiB) != static_cast<ssize_t>(kMiB) || bytes != content(number)) return 1;
    ::close(fd);
    ++there;
  }
  std::printf("memory_guest: %d of %d entries are there\n", there, count);
  return there == 0 ? 1 : 0;
}

// As a model server does that starts: touches its memory, and keeps it for two seconds.
int take(int mib) {
  const size_t bytes = static_cast<size_t>(mib) * kMiB;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  std::memset(memory, 1, bytes);
  ::sleep(2);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 2 ? argv[1] : "";
  if (command == "store" && argc == 4) return store(argv[2], std::atoi(argv[3]));
  if (command == "whole" && argc == 4) return whole(argv[2], std::atoi(argv[3]));
  if (command == "take" && argc == 3) return take(std::atoi(argv[2]));
  return 2;
}
