// The connector of connector.py in C++ and system calls: it needs no library of kvcachefs.
//
//     c++ -std=c++20 -O2 -o connector connector.cc && ./connector /mnt/kv/llama
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Tokens = std::vector<uint32_t>;
constexpr size_t kBlockTokens = 16;
const std::string kModel = "example-8b/bf16/tp1";

[[noreturn]] void fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

std::string_view bytes_of(const Tokens& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint32_t)};
}

void write_all(int file, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0) fail(path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

// All at once under its final name, or not at all: readers never see a part of a block.
void store(const std::string& path, std::string_view content, const Tokens& tokens,
           const std::string& parent) {
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  const int file = ::open(temporary.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (file < 0) fail(temporary);
  write_all(file, content, temporary);
  const auto set = [&](const char* xattr, std::string_view value) {
    if (::fsetxattr(file, xattr, value.data(), value.size(), 0) != 0) fail(temporary);
  };
  set("user.kv.model", kModel);
  set("user.kv.tokens", bytes_of(tokens));
  if (!parent.empty()) set("user.kv.parent", parent);
  if (::close(file) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) fail(path);
}

// The answer to the question which entries hold the longest prefix of these tokens.
std::string longest_prefix(const std::string& pool, const Tokens& tokens) {
  const std::string path = pool + "/.pool/match";
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) fail(path);
  const Tokens head = {1, static_cast<uint32_t>(kModel.size()), static_cast<uint32_t>(tokens.size())};
  write_all(file, "KVQ1" + std::string(bytes_of(head)) + kModel + std::string(bytes_of(tokens)), path);
  std::string answer, piece(65536, '\0');
  for (ssize_t bytes = 1; bytes > 0; answer.append(piece, 0, static_cast<size_t>(bytes)))
    if ((bytes = ::read(file, piece.data(), piece.size())) < 0) fail(path);
  ::close(file);
  return answer;
}

void use(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) fail(path);
  void* const content = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
  if (content == MAP_FAILED) fail(path);
  std::printf("%s: %lld bytes, begins with %c\n", path.c_str(), static_cast<long long>(status.st_size),
              *static_cast<const char*>(content));
  ::munmap(content, static_cast<size_t>(status.st_size));
  ::close(file);
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  const std::string pool = words[1];
  Tokens prompt(2 * kBlockTokens + 40);
  std::iota(prompt.begin(), prompt.end(), 2000U);
  const auto middle = prompt.begin() + kBlockTokens;
  store(pool + "/cc-0", std::string(1 << 20, 'K'), Tokens(prompt.begin(), middle), "");
  store(pool + "/cc-1", std::string(1 << 20, 'V'), Tokens(middle, middle + kBlockTokens), "cc-0");

  std::istringstream lines(longest_prefix(pool, prompt));
  std::string line;
  std::getline(lines, line);
  std::printf("%s\n", line.c_str());
  while (std::getline(lines, line)) use(pool + "/" + line.substr(line.rfind('\t') + 1));
  return 0;
}
