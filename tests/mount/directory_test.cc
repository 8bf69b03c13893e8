// Directories: making, listing, changing while they are read, and large flat ones.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/transcript.h"

namespace kvcachefs::test {
namespace {

// Several reads of the kernel's and the library's buffers, and a second's work.
constexpr int kManyEntries = 20'000;

struct CloseDirectory {
  void operator()(DIR* stream) const { ::closedir(stream); }
};
using Stream = std::unique_ptr<DIR, CloseDirectory>;

Stream open_stream(const std::string& directory) {
  return Stream(::opendir(directory.c_str()));
}

// The next name that is not a dot entry; empty at the end.
std::string next_name(const Stream& stream) {
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") return name;
  }
  return "";
}

std::string number_name(int i) {
  return "entry-" + std::to_string(i);
}

void fill(const std::string& directory, int count) {
  for (int i = 0; i < count; ++i) File(directory + "/" + number_name(i), O_WRONLY | O_CREAT);
}

PARITY_TEST(MakeAndRemove) {
  const std::string name = directory + "/d";
  transcript.call("mkdir", ::mkdir(name.c_str(), 0751));
  transcript.call("again", ::mkdir(name.c_str(), 0751));
  transcript.status("status", name);
  transcript.status("parent", directory);
  transcript.call("below a missing one", ::mkdir((directory + "/x/y").c_str(), 0755));
  write_file(name + "/file", "x");
  transcript.call("rmdir of a full one", ::rmdir(name.c_str()));
  transcript.call("unlink of a directory", ::unlink(name.c_str()));
  transcript.call("rmdir of a file", ::rmdir((name + "/file").c_str()));
  transcript.call("rmdir of a missing one", ::rmdir((name + "/x").c_str()));
  transcript.call("rmdir of .", ::rmdir((name + "/.").c_str()));
  transcript.call("rmdir of ..", ::rmdir((name + "/..").c_str()));
  transcript.call("unlink", ::unlink((name + "/file").c_str()));
  transcript.call("rmdir", ::rmdir(name.c_str()));
  transcript.status("gone", name);
  transcript.status("parent", directory);
}

PARITY_TEST(DeepTree) {
  std::string name = directory;
  for (int i = 0; i < 60; ++i) {
    name += "/level";
    transcript.call("mkdir", ::mkdir(name.c_str(), 0755));
  }
  write_file(name + "/file", "deep");
  transcript.content("content", name + "/file");
}

PARITY_TEST(RemovedWorkingDirectory) {
  const std::string name = directory + "/d";
  make_directory(name);
  transcript.note("child", in_child([&] {
                    if (::chdir(name.c_str()) != 0 || ::rmdir(name.c_str()) != 0) return 1;
                    struct stat status {};
                    if (::stat(".", &status) != 0 || status.st_nlink != 0) return 2;
                    if (error_of(::open("file", O_CREAT | O_RDWR, 0644)) != ENOENT) return 3;
                    if (error_of(::mkdir("d", 0755)) != ENOENT) return 4;
                    const Stream stream = open_stream(".");
                    if (!stream) return 5;
                    return next_name(stream).empty() ? 0 : 6;
                  }));
}

PARITY_TEST(ListingNamesTypesAndNumbers) {
  write_file(directory + "/file", "x");
  make_directory(directory + "/folder");
  ASSERT_EQ(::symlink("file", (directory + "/link").c_str()), 0);
  ASSERT_EQ(::mkfifo((directory + "/pipe").c_str(), 0644), 0);
  std::set<std::string> seen;
  const Stream stream = open_stream(directory);
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    seen.insert(name + " type " + std::to_string(entry->d_type));
    struct stat status {};
    ASSERT_EQ(::lstat((directory + "/" + name).c_str(), &status), 0);
    if (name == "..") continue;
    EXPECT_EQ(entry->d_ino, status.st_ino) << name;
  }
  for (const std::string& line : seen) transcript.note("entry", line);
}

PARITY_TEST(RewindSeesNewNames) {
  fill(directory, 5);
  const Stream stream = open_stream(directory);
  int before = 0;
  while (!next_name(stream).empty()) ++before;
  write_file(directory + "/new", "x");
  ::unlink((directory + "/" + number_name(0)).c_str());
  ::rewinddir(stream.get());
  std::set<std::string> after;
  for (std::string name = next_name(stream); !name.empty(); name = next_name(stream)) after.insert(name);
  transcript.note("before", before);
  for (const std::string& name : after) transcript.note("after", name);
}

PARITY_TEST(SeekWhileEntriesAreRemoved) {
  constexpr int kEntries = 3000;
  fill(directory, kEntries);
  const Stream stream = open_stream(directory);
  std::vector<std::string> order;
  std::vector<long> positions;
  for (;;) {
    positions.push_back(::telldir(stream.get()));
    const std::string name = next_name(stream);
    if (name.empty()) break;
    order.push_back(name);
  }
  ASSERT_EQ(order.size(), size_t{kEntries});
  // Each third goes; then every position that is left leads to the next name that is left.
  for (size_t i = 0; i < order.size(); i += 3) ASSERT_EQ(::unlink((directory + "/" + order[i]).c_str()), 0);
  for (size_t i = 1; i < order.size(); i += 97) {
    if (i % 3 == 0) continue;
    ::seekdir(stream.get(), positions[i]);
    const Stream fresh = open_stream(directory);
    ASSERT_EQ(next_name(stream), order[i]) << i;
  }
  ::rewinddir(stream.get());
  int left = 0;
  while (!next_name(stream).empty()) ++left;
  transcript.note("left", left);
}

PARITY_TEST(RemoveAllWhileReading) {
  fill(directory, 2500);
  const Stream stream = open_stream(directory);
  int removed = 0;
  for (std::string name = next_name(stream); !name.empty(); name = next_name(stream)) {
    if (::unlink((directory + "/" + name).c_str()) == 0) ++removed;
  }
  transcript.note("removed", removed);
  transcript.listing("left", directory);
}

PARITY_TEST(TwentyThousandEntries) {
  fill(directory, kManyEntries);
  std::set<std::string> seen;
  const Stream stream = open_stream(directory);
  int entries = 0;
  for (std::string name = next_name(stream); !name.empty(); name = next_name(stream)) {
    seen.insert(name);
    ++entries;
  }
  // Each once: no name lost or said twice at a border of two buffers.
  EXPECT_EQ(entries, kManyEntries);
  EXPECT_EQ(seen.size(), size_t{kManyEntries});
  transcript.note("entries", entries);
  int found = 0;
  for (int i = 0; i < kManyEntries; i += 7) found += exists(directory + "/" + number_name(i)) ? 1 : 0;
  transcript.note("found", found);
  for (int i = 0; i < kManyEntries; i += 2) ::unlink((directory + "/" + number_name(i)).c_str());
  transcript.note("half", static_cast<long>(list(directory).size()));
}

PARITY_TEST(DescriptorsAsStartingPoints) {
  make_directory(directory + "/a");
  const File folder(directory + "/a", O_RDONLY | O_DIRECTORY);
  transcript.call("mkdirat", ::mkdirat(folder.fd(), "b", 0755));
  const File file(::openat(folder.fd(), "b/file", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  transcript.call("write", ::write(file.fd(), "x", 1));
  transcript.call("rename of the parent", ::rename((directory + "/a").c_str(), (directory + "/c").c_str()));
  transcript.call("still there", ::faccessat(folder.fd(), "b/file", R_OK, 0));
  transcript.call("unlinkat", ::unlinkat(folder.fd(), "b/file", 0));
  transcript.call("unlinkat of a directory", ::unlinkat(folder.fd(), "b", AT_REMOVEDIR));
  transcript.listing("listing", directory + "/c");
}

}  // namespace
}  // namespace kvcachefs::test
