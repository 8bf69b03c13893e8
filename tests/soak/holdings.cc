// What clients keep open and do not use: writers, readers, nameless files, listings, watches, descriptors.
#include <dirent.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>

#include "tests/soak/client.h"

namespace kvcachefs::soak {
namespace {

constexpr size_t kLargePiece = 1 << 20;

void hold_writers(Client& client) {
  const std::string pool = client.any_pool();
  (void)client.make(client.own(pool), 0755);
  const std::string block = content_of(1, 1, 0, kBlock);
  for (int i = 0; i < 60 && client.goes_on(); ++i) {
    const std::string path = client.own(pool) + "/idle" + std::to_string(client.random().below(200));
    File file = client.open(Call::kCreate, path, O_CREAT | O_WRONLY, 0644);
    if (file.fd() < 0) return;
    if (i % 2 == 0)
      client.call(Call::kWrite, path, [&] { return ::pwrite(file.fd(), block.data(), kBlock, 0); });
    client.held.push_back(std::move(file));
  }
}

// Memory that nothing evicts as long as its writer stays: others, and he himself, meet the end of the pool.
void hold_large(Client& client) {
  const std::string pool = client.any_pool();
  (void)client.make(client.own(pool), 0755);
  const std::string path = client.own(pool) + "/large" + std::to_string(client.random().below(4));
  File file = client.open(Call::kCreate, path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (file.fd() < 0) return;
  const std::string piece = content_of(1, 1, 0, kLargePiece);
  const uint64_t pieces = 4 + client.random().below(20);
  for (uint64_t i = 0; i < pieces && client.goes_on(); ++i)
    if (client.call(Call::kWrite, path, [&] { return ::write(file.fd(), piece.data(), piece.size()); }) !=
        static_cast<long>(piece.size()))
      break;
  client.large = std::move(file);
}

void hold_readers(Client& client) {
  const std::string pool = client.any_pool();
  const uint64_t first = client.any_key(pool);
  for (uint64_t i = 0; i < 60 && client.goes_on(); ++i) {
    const std::string path = client.shared(pool, first + i) + "/e-" + std::to_string(first + i);
    File file = client.random().one_in(3) ? client.open(Call::kOpenAsPath, path, O_PATH)
                                          : client.open(Call::kOpenToRead, path, O_RDONLY);
    if (file.fd() >= 0) client.held.push_back(std::move(file));
  }
}

void hold_nameless(Client& client) {
  const std::string pool = client.any_pool();
  for (int i = 0; i < 100 && client.goes_on(); ++i) {
    File file = client.open(Call::kOpenNameless, client.root(pool), O_TMPFILE | O_RDWR, 0600);
    if (file.fd() < 0) return;
    client.held.push_back(std::move(file));
  }
}

// Up to this process's limit, for a moment.
void flood_descriptors(Client& client) {
  const std::string pool = client.any_pool();
  std::deque<File> flood;
  for (uint64_t i = 0; client.goes_on(); ++i) {
    const std::string path = client.own(pool) + "/many" + std::to_string(i % 50);
    File file = client.open(Call::kCreate, path, O_CREAT | O_RDWR, 0644);
    if (file.fd() < 0) break;
    flood.push_back(std::move(file));
  }
}

void hold_listing(Client& client) {
  const std::string pool = client.any_pool();
  const std::string directory =
      client.random().one_in(2) ? client.own(pool) : client.shared(pool, client.random().below(8));
  File file = client.open(Call::kOpenDirectory, directory, O_RDONLY | O_DIRECTORY);
  if (file.fd() < 0) return;
  DIR* const listing = ::fdopendir(file.release());
  if (listing != nullptr) client.listings.push_back({listing});
}

void go_on_listing(Client& client) {
  for (const Listing& listing : client.listings)
    for (int i = 0; i < 100; ++i) {
      const dirent* entry = nullptr;
      client.call(Call::kList, "a listing that is held", [&] {
        entry = ::readdir(listing.directory);
        return entry == nullptr && errno != 0 ? -1 : 0;
      });
      if (entry == nullptr) break;
    }
}

void watch(Client& client) {
  File watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (watch.fd() < 0) return;
  const std::string pool = client.any_pool();
  for (uint64_t i = 0; i < 8; ++i) {
    const std::string directory = i % 2 == 0 ? client.shared(pool, i) : client.own(pool);
    client.call(Call::kWatch, directory, [&] {
      return ::inotify_add_watch(watch.fd(), directory.c_str(), IN_CREATE | IN_DELETE | IN_MOVED_TO);
    });
  }
  client.watches.push_back(std::move(watch));
  std::array<char, 4096> events{};
  for (const File& one : client.watches)
    while (::read(one.fd(), events.data(), events.size()) > 0) {
    }
}

}  // namespace

const std::vector<Action>& holding_actions() {
  static const std::vector<Action> kActions = {{"hold writers", 6, hold_writers},
                                               {"hold readers", 6, hold_readers},
                                               {"hold large", 3, hold_large},
                                               {"hold nameless", 4, hold_nameless},
                                               {"flood of descriptors", 2, flood_descriptors},
                                               {"hold a listing", 6, hold_listing},
                                               {"go on listing", 4, go_on_listing},
                                               {"watch", 4, watch}};
  return kActions;
}

}  // namespace kvcachefs::soak
