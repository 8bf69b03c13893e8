// A client of the soak: one process of one user, which draws what it does next. Each action is a function of
// a Client; what a client has open or knows of its own files stays between them. Only for the process and the
// thread that made it. Errors of calls are written to the Record; exceptions are those of the standard
// library.
#pragma once

#include <dirent.h>
#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/soak/calls.h"
#include "tests/soak/content.h"
#include "tests/soak/record.h"
#include "tests/support/files.h"

namespace kvcachefs::soak {

using test::File;
using test::Random;

struct Place {
  std::string mount;                        // the mount's root
  std::vector<std::string> pools;           // names; the last one has a disk
  std::vector<uint64_t> pool_bytes;         // what their sizes are at most
  uint64_t most_entries, most_directories;  // what their limits are at most
};

// What a client knows of a file that it alone changes.
struct OwnFile {
  std::map<uint64_t, uint16_t> blocks;  // the versions of those that are no holes
  uint64_t size = 0;                    // a multiple of kBlock
  bool is_known = false;                // false: not there, or a write to it has failed
};

struct SlowWriter {
  File file;
  std::string pool;
  uint64_t number;
};

struct Listing {
  DIR* directory;
};

class Client {
 public:
  Client(Record& record, const Place& place, int number, uid_t uid, uint64_t seed)
      : record_(record), place_(place), number_(number), uid_(uid), random_(seed + 1000 * number) {}

  void run();

  // The result of a call, with errno, which is written down.
  long call(Call call, std::string_view what, const std::function<long()>& make) {
    record_.begins(number_, call);
    errno = 0;
    const long result = make();
    const int error = result < 0 ? errno : 0;
    record_.ends(number_, call, error, what);
    errno = error;
    return result;
  }
  File open(Call call, const std::string& path, int flags, mode_t mode = 0666);
  void close(File& file, std::string_view what);
  long make(const std::string& directory, mode_t mode = 0777);

  void wrong(const std::string& text) { record_.fail("WRONG BYTES: " + text, true); }
  Record& record() { return record_; }
  Random& random() { return random_; }
  int number() const { return number_; }
  uid_t uid() const { return uid_; }
  const Place& place() const { return place_; }
  bool goes_on() const { return record_.goes_on(); }

  const std::string& any_pool() { return place_.pools[random_.below(place_.pools.size())]; }
  std::string root(const std::string& pool) const { return place_.mount + "/" + pool; }
  // Directories that all write to, and one that is this user's.
  std::string shared(const std::string& pool, uint64_t key) const {
    return root(pool) + "/shared-" + std::to_string(key % 8);
  }
  std::string own(const std::string& pool) const { return root(pool) + "/u" + std::to_string(number_); }
  uint16_t any_version() { return static_cast<uint16_t>(1 + random_.below(65535)); }
  uint64_t any_key(const std::string& pool) {
    // Most of what is used is in a part that fits into memory.
    const uint64_t keys = pool == place_.pools.back() ? 2400 : 800;
    return random_.one_in(3) ? random_.below(keys) : random_.below(keys / 8);
  }

  // What is held.
  std::map<std::pair<std::string, uint64_t>, OwnFile> own_files;
  std::deque<SlowWriter> slow_writers;
  std::deque<File> held;
  File large = File(-1);
  std::deque<File> watches;
  std::deque<Listing> listings;
  uint64_t serial = 0;  // of temporary names

 private:
  void let_go();

  Record& record_;
  const Place& place_;
  int number_;
  uid_t uid_;
  Random random_;
};

struct Action {
  const char* name;
  unsigned weight;
  void (*act)(Client& client);
  bool is_roots = false;
};
const std::vector<Action>& entry_actions();      // entries.cc
const std::vector<Action>& own_file_actions();   // own_files.cc
const std::vector<Action>& name_actions();       // names.cc
const std::vector<Action>& attribute_actions();  // attributes.cc
const std::vector<Action>& holding_actions();    // holdings.cc
const std::vector<Action>& control_actions();    // control.cc

// fork_client() starts a client. Returns its process.
pid_t fork_client(Record& record, const Place& place, int number, uid_t uid, uint64_t seed);

}  // namespace kvcachefs::soak
