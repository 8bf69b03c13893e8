// Directories: making, listing, changing while they are read, and large flat ones.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/pool_pressure.h"
#include "tests/support/transcript.h"

namespace kvcachefs::test {
namespace {

// The listing takes several of the kernel's and the library's buffers, and a second.
constexpr int kManyEntries = 20'000;
// The listing takes tens of buffers and a few seconds; KVCACHEFS_TEST_NAMES asks for more by hand.
constexpr int kFlatEntries = 30'000;

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

// Pipes are the cheapest names, because no file is opened and no bytes are kept.
void fill_with_pipes(const std::string& directory, int count) {
  for (int i = 0; i < count; ++i)
    ASSERT_EQ(error_name(error_of(::mkfifo((directory + "/" + number_name(i)).c_str(), 0644))), "ok") << i;
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

// The rest of a stream: each name with the position that leads to it.
struct Place {
  std::string name;
  long position = 0;
};
std::vector<Place> rest_of(const Stream& stream) {
  std::vector<Place> places;
  for (;;) {
    const long position = ::telldir(stream.get());
    std::string name = next_name(stream);
    if (name.empty()) return places;
    places.push_back({std::move(name), position});
  }
}

PARITY_TEST(SeekWhileEntriesAreRemoved) {
  const char* const more = std::getenv("KVCACHEFS_TEST_NAMES");
  const int names = more == nullptr ? kFlatEntries : std::atoi(more);
  fill_with_pipes(directory, names);
  const Stream stream = open_stream(directory);
  const std::vector<Place> before = rest_of(stream);
  ASSERT_EQ(before.size(), static_cast<size_t>(names));
  // Each tenth name goes, and a stretch of several buffers: every position of a name that is left leads to
  // it.
  const size_t gap_begin = before.size() / 2;
  const size_t gap_end = gap_begin + before.size() / 10;
  const auto removed = [&](size_t i) { return i % 10 == 0 || (i >= gap_begin && i < gap_end); };
  std::vector<std::string> left;
  for (size_t i = 0; i < before.size(); ++i) {
    if (!removed(i)) {
      left.push_back(before[i].name);
      continue;
    }
    ASSERT_EQ(::unlink((directory + "/" + before[i].name).c_str()), 0);
  }
  for (size_t i = 1; i < before.size(); i += 331) {
    if (removed(i)) continue;
    ::seekdir(stream.get(), before[i].position);
    ASSERT_EQ(next_name(stream), before[i].name) << i;
  }
  // From the position of a name that is gone the listing goes on behind it: each later name once, in the same
  // order.
  for (const size_t from : {size_t{30}, gap_begin + (gap_end - gap_begin) / 2, before.size() / 10 * 9}) {
    size_t skipped = 0;
    for (size_t i = 0; i < from; ++i) skipped += removed(i) ? 0 : 1;
    ::seekdir(stream.get(), before[from].position);
    const std::vector<Place> seen = rest_of(stream);
    ASSERT_EQ(seen.size(), left.size() - skipped) << from;
    for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i].name, left[skipped + i]) << from;
  }
  ::rewinddir(stream.get());
  transcript.note("left", static_cast<long>(rest_of(stream).size()));
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
  // Each name occurs once: none is lost or repeated at the border of two buffers.
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

// What a listing has besides each of its `staying` names once: names that it has twice, and those that it
// lacks.
class Wrong {
 public:
  void add(const std::vector<std::string>& listed, const std::vector<std::string>& staying) {
    std::map<std::string, int> times;
    for (const std::string& name : listed)
      if (++times[name] == 2) ++doubled_;
    for (const std::string& name : staying) missing_ += times.contains(name) ? 0 : 1;
  }
  void expect_none() const {
    EXPECT_EQ(doubled_, 0);
    EXPECT_EQ(missing_, 0);
  }

 private:
  std::atomic<int> doubled_ = 0;
  std::atomic<int> missing_ = 0;
};

// The call gives a name of no bytes to another one of that kind, as a store replaces an entry.
void replace(const std::string& name) {
  ASSERT_EQ(::mkfifo((name + ".tmp").c_str(), 0644), 0);
  ASSERT_EQ(::rename((name + ".tmp").c_str(), name.c_str()), 0);
}

std::vector<std::string> names_left(const Stream& stream) {
  std::vector<std::string> names;
  for (std::string name = next_name(stream); !name.empty(); name = next_name(stream))
    names.push_back(std::move(name));
  return names;
}

class ListingTest : public SharedMount<ListingTest> {
 public:
  static MountOptions options() { return {.pools = {"p:size=64M", "many:size=256M"}}; }

 protected:
  static int64_t entries_left() { return mount().stat_value("evictions") + mount().stat_value("discards"); }
};

// One directory has nothing but entries that come and leave by eviction, the oldest first. In the other one
// names stay, are replaced, renamed and removed. Each listing of each thread has the names that stay once,
// and none twice.
TEST_F(ListingTest, EachNameOnceWhileThePoolEvicts) {
  mount().stop_killing();
  const std::string churning = path("churning"), changing = path("changing");
  make_directory(churning);
  make_directory(changing);
  std::vector<std::string> staying;
  for (int i = 0; i < 8; ++i) {
    for (const char* const kind : {"kept-", "replaced-"}) {
      staying.push_back(kind + std::to_string(i));
      ASSERT_EQ(::mkfifo((changing + "/" + staying.back()).c_str(), 0644), 0);
    }
  }
  std::atomic<bool> done = false;
  std::thread writer([&] {
    const std::string content = pattern(1, kMiB);
    for (int i = 0; !done; ++i) EXPECT_EQ(store(churning + "/entry-" + std::to_string(i % 500), content), 0);
  });
  std::thread changer([&] {
    for (int i = 0; !done; ++i) {
      replace(changing + "/replaced-" + std::to_string(i % 8));
      const std::string name = changing + "/moved-" + std::to_string(i);
      EXPECT_EQ(::mkfifo(name.c_str(), 0644), 0);
      EXPECT_EQ(::rename(name.c_str(), (name + "-again").c_str()), 0);
      EXPECT_EQ(::unlink((name + "-again").c_str()), 0);
    }
  });
  Wrong wrong;
  std::vector<std::thread> listers;
  for (int each = 0; each < 3; ++each)
    listers.emplace_back([&] {
      for (int i = 0; i < 1000 || entries_left() < 1000; ++i) {
        wrong.add(names_left(open_stream(churning)), {});
        wrong.add(names_left(open_stream(changing)), staying);
      }
    });
  for (std::thread& lister : listers) lister.join();
  done = true;
  writer.join();
  changer.join();
  wrong.expect_none();
}

// Between any two buffers of a listing names are removed, above all those that come next, names are replaced,
// and another process begins to serve.
TEST_F(ListingTest, EachNameOnceAcrossTakeovers) {
  mount().stop_killing();
  const char* const more = std::getenv("KVCACHEFS_TEST_NAMES");
  const std::string directory = mount().path("many");
  fill_with_pipes(directory, more == nullptr ? kFlatEntries : std::atoi(more));
  std::vector<std::string> staying = names_left(open_stream(directory));
  const Stream stream = open_stream(directory);
  std::vector<std::string> listed;
  for (const size_t part : {0, 1, 2, 3}) {
    const size_t until = staying.size() * (part + 1) / 5;
    while (listed.size() < until) listed.push_back(next_name(stream));
    const size_t last = part == 3 ? staying.size() : until + 2000;
    std::vector<std::string> left;
    for (size_t i = 0; i < staying.size(); ++i) {
      const bool changes = i >= until && i < last;
      if (changes && i % 3 == 0) replace(directory + "/" + staying[i]);
      if (changes && i % 3 == 1) {
        ASSERT_EQ(::unlink((directory + "/" + staying[i]).c_str()), 0);
      } else {
        left.push_back(staying[i]);
      }
    }
    staying = left;
    ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  }
  for (std::string& name : names_left(stream)) listed.push_back(std::move(name));
  Wrong wrong;
  wrong.add(listed, staying);
  wrong.expect_none();
  remove_content(directory);
}

}  // namespace
}  // namespace kvcachefs::test
