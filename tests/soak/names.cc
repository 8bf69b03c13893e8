// Directories in floods and in depth, symbolic links, listings, and what is removed while it is listed.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstring>

#include "tests/soak/client.h"
#include "tests/soak/stores.h"

namespace kvcachefs::soak {
namespace {

constexpr int kLevels = PATH_MAX / 200 + 3;

void flood_directories(Client& client) {
  const std::string pool = client.any_pool();
  const std::string top = client.own(pool) + "/d" + std::to_string(client.random().below(40));
  (void)client.make(client.own(pool), 0755);
  (void)client.make(top);
  for (int i = 0; i < 60 && client.goes_on(); ++i)
    if (client.make(top + "/" + std::to_string(i)) != 0 && errno == ENOSPC) return;
}

void remove_directories(Client& client) {
  const std::string pool = client.any_pool();
  const std::string top = client.own(pool) + "/d" + std::to_string(client.random().below(40));
  for (int i = 0; i < 60 && client.goes_on(); ++i) {
    const std::string path = top + "/" + std::to_string(i);
    client.call(Call::kRemoveDirectory, path, [&] { return ::rmdir(path.c_str()); });
  }
  client.call(Call::kRemoveDirectory, top, [&] { return ::rmdir(top.c_str()); });
}

// Descends from the client's directory by names of 200 bytes, which it makes if `makes`. -1 if they end
// early.
File descend(Client& client, const std::string& pool, bool makes) {
  const std::string name(200, 'd');
  File at = client.open(Call::kOpenDirectory, client.own(pool), O_RDONLY | O_DIRECTORY);
  for (int level = 0; level < kLevels && at.fd() >= 0; ++level) {
    if (makes)
      client.call(Call::kMakeDirectory, "a deep one", [&] { return ::mkdirat(at.fd(), name.c_str(), 0755); });
    const long next = client.call(Call::kOpenDirectory, "a deep one", [&] {
      return ::openat(at.fd(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    });
    at = File(static_cast<int>(next));
  }
  return at;
}

void store_deep(Client& client) {
  const std::string pool = client.any_pool();
  (void)client.make(client.own(pool), 0755);
  const File at = descend(client, pool, true);
  if (at.fd() < 0) return;
  for (int i = 0; i < 6; ++i) {
    const std::string name = "deep-" + std::to_string(client.random().below(40));
    const uint16_t version = client.any_version();
    const std::string content = content_of(identity_of(name)->id, version, 0, whole_size(name, version));
    const std::string temporary = "tmp-" + std::to_string(client.number());
    File file(static_cast<int>(client.call(Call::kCreate, "a deep one", [&] {
      return ::openat(at.fd(), temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    })));
    if (file.fd() < 0 && errno != EEXIST) return;
    const bool done = file.fd() >= 0 && write_all(client, file, "a deep one", content, content.size());
    client.close(file, "a deep one");
    if (done && client.call(Call::kRename, "a deep one", [&] {
          return ::renameat(at.fd(), temporary.c_str(), at.fd(), name.c_str());
        }) == 0)
      continue;
    client.call(Call::kUnlink, "a deep one", [&] { return ::unlinkat(at.fd(), temporary.c_str(), 0); });
  }
}

void read_deep(Client& client) {
  const std::string pool = client.any_pool();
  const File at = descend(client, pool, false);
  if (at.fd() < 0) return;
  for (int i = 0; i < 40; ++i) {
    const std::string name = "deep-" + std::to_string(i);
    File file(static_cast<int>(client.call(Call::kOpenToRead, "a deep one", [&] {
      return ::openat(at.fd(), name.c_str(), O_RDONLY | O_CLOEXEC);
    })));
    if (file.fd() < 0) continue;
    read_open(client, file, "a deep " + name, name);
    client.close(file, "a deep one");
    ++client.record().tally().deep;
  }
}

void link_symbolically(Client& client) {
  const std::string pool = client.any_pool();
  (void)client.make(client.own(pool), 0755);
  for (int i = 0; i < 20 && client.goes_on(); ++i) {
    const uint64_t number = client.random().below(300);
    const std::string path = client.own(pool) + "/symlink" + std::to_string(number);
    const std::string target(1 + number * 11, 't');
    std::string found(PATH_MAX, '\0');
    const long length = client.call(Call::kReadLink, path,
                                    [&] { return ::readlink(path.c_str(), found.data(), found.size()); });
    if (length >= 0 && found.substr(0, static_cast<size_t>(length)) != target)
      client.wrong(path + " leads elsewhere");
    if (length < 0)
      client.call(Call::kSymlink, path, [&] { return ::symlink(target.c_str(), path.c_str()); });
    else if (client.random().one_in(2))
      client.call(Call::kUnlink, path, [&] { return ::unlink(path.c_str()); });
  }
}

std::string any_directory(Client& client, const std::string& pool) {
  if (client.random().one_in(3)) return client.own(pool);
  return client.random().one_in(6) ? client.root(pool) : client.shared(pool, client.random().below(8));
}

// A listing of which some is removed while it goes on. A name that was listed may have left.
void list_and_remove(Client& client) {
  const std::string pool = client.any_pool();
  const std::string directory = any_directory(client, pool);
  const bool removes = client.random().one_in(3);
  File file = client.open(Call::kOpenDirectory, directory, O_RDONLY | O_DIRECTORY);
  if (file.fd() < 0) return;
  DIR* const listing = ::fdopendir(file.release());
  if (listing == nullptr) return;
  for (int i = 0; i < 1000 && client.goes_on(); ++i) {
    const dirent* entry = nullptr;
    client.call(Call::kList, directory, [&] {
      entry = ::readdir(listing);
      return entry == nullptr && errno != 0 ? -1 : 0;
    });
    if (entry == nullptr) break;
    const std::string path = directory + "/" + entry->d_name;
    const auto identity = identity_of(entry->d_name);
    if (identity && !identity->is_whole) continue;  // an own file of somebody
    struct stat status {};
    if (i % 8 == 0) client.call(Call::kStat, path, [&] { return ::lstat(path.c_str(), &status); });
    if (identity && removes && client.random().one_in(3))
      client.call(Call::kUnlink, path, [&] { return ::unlink(path.c_str()); });
  }
  ::closedir(listing);
}

void probe(Client& client) {
  const std::string pool = client.any_pool();
  for (int i = 0; i < 100 && client.goes_on(); ++i) {
    const uint64_t key = client.any_key(pool) + (client.random().one_in(2) ? 100'000 : 0);
    const std::string path = client.shared(pool, key) + "/e-" + std::to_string(key);
    struct stat status {};
    client.call(Call::kStat, path, [&] { return ::stat(path.c_str(), &status); });
  }
}

}  // namespace

const std::vector<Action>& name_actions() {
  static const std::vector<Action> kActions = {{"flood of directories", 8, flood_directories},
                                               {"remove directories", 4, remove_directories},
                                               {"store deep", 5, store_deep},
                                               {"read deep", 5, read_deep},
                                               {"symbolic links", 6, link_symbolically},
                                               {"list and remove", 10, list_and_remove},
                                               {"probe", 10, probe}};
  return kActions;
}

}  // namespace kvcachefs::soak
