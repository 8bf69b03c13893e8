// Entries as the engines keep them: stored at once under a temporary name, read, mapped, exchanged.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "tests/soak/client.h"
#include "tests/soak/stores.h"

namespace kvcachefs::soak {
namespace {

void store_some(Client& client) {
  const std::string pool = client.any_pool();
  const uint64_t key = client.any_key(pool);
  const uint64_t count = client.random().below(6);
  for (uint64_t i = 0; i <= count && client.goes_on(); ++i)
    (void)store(client, client.shared(pool, key + i), "e-" + std::to_string(key + i),
                client.random().one_in(4) ? How::kNameless : How::kRenamed);
}

void store_durable(Client& client) {
  const std::string pool = client.any_pool();
  const uint64_t key = client.any_key(pool);
  (void)store(client, client.shared(pool, key), "e-" + std::to_string(key), How::kDurable);
}

void flood_small(Client& client) {
  const std::string pool = client.any_pool();
  const std::string directory = client.own(pool);
  const uint64_t first = client.random().below(4000);
  for (uint64_t i = 0; i < 150 && client.goes_on(); ++i)
    if (!store(client, directory, "s-" + std::to_string(client.number()) + "-" + std::to_string(first + i),
               How::kRenamed))
      return;
}

std::string any_name(Client& client, uint64_t key) {
  switch (client.random().below(8)) {
    case 0:
      return "l-" + std::to_string(key);
    case 1:
    case 2:
      return "x-" + std::to_string(key % 64);
    default:
      return "e-" + std::to_string(key);
  }
}

void read_some(Client& client) {
  const std::string pool = client.any_pool();
  const uint64_t count = 4 + client.random().below(16);
  const uint64_t key = client.any_key(pool);
  for (uint64_t i = 0; i < count && client.goes_on(); ++i) {
    const std::string name = any_name(client, key + i);
    read_whole(client, client.shared(pool, name.starts_with("x") ? 0 : key + i), name);
  }
}

void read_others_small(Client& client) {
  const std::string pool = client.any_pool();
  const std::string other = std::to_string(client.random().below(kClients));
  const uint64_t first = client.random().below(4000);
  for (uint64_t i = 0; i < 40 && client.goes_on(); ++i)
    read_whole(client, client.root(pool) + "/u" + other, "s-" + other + "-" + std::to_string(first + i));
}

struct OpenedEntry {
  std::string name, path;
  File file;  // none: a miss
};

OpenedEntry open_any(Client& client) {
  const std::string pool = client.any_pool();
  const uint64_t key = client.any_key(pool);
  const std::string name = "e-" + std::to_string(key);
  const std::string path = client.shared(pool, key) + "/" + name;
  return {name, path, client.open(Call::kOpenToRead, path, O_RDONLY)};
}

void map_some(Client& client) {
  OpenedEntry opened = open_any(client);
  auto& [name, path, file] = opened;
  if (file.fd() < 0) return;
  struct stat status {};
  if (client.call(Call::kStat, path, [&] { return ::fstat(file.fd(), &status); }) != 0) return;
  const auto bytes = static_cast<size_t>(status.st_size);
  const int flags = client.random().one_in(3) ? MAP_PRIVATE : MAP_SHARED;
  void* at = MAP_FAILED;
  client.call(Call::kMap, path, [&] {
    at = ::mmap(nullptr, bytes, PROT_READ, flags, file.fd(), 0);
    return at == MAP_FAILED ? -1 : 0;
  });
  if (at == MAP_FAILED) return;
  client.close(file, path);  // the mapping alone keeps it
  if (client.random().one_in(4)) ::usleep(static_cast<useconds_t>(client.random().below(50'000)));
  const std::string wrong = wrong_whole(name, {static_cast<const char*>(at), bytes});
  if (!wrong.empty()) client.wrong("mapping of " + path + ": " + wrong);
  client.record().tally().bytes += bytes;
  ++client.record().tally().whole;
  ::munmap(at, bytes);
}

void exchange(Client& client) {
  const std::string pool = client.any_pool();
  const std::string directory = client.shared(pool, 0);
  const uint64_t pair = client.random().below(32) * 2;
  const std::string a = "x-" + std::to_string(pair), b = "x-" + std::to_string(pair + 1);
  if (client.random().one_in(2)) (void)store(client, directory, a, How::kRenamed);
  if (client.random().one_in(4)) (void)store(client, directory, b, How::kRenamed);
  const std::string from = directory + "/" + a, to = directory + "/" + b;
  client.call(Call::kExchange, from,
              [&] { return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE); });
  if (client.random().one_in(3))
    client.call(Call::kRename, from, [&] { return ::rename(from.c_str(), to.c_str()); });
}

void link_some(Client& client) {
  const std::string pool = client.any_pool();
  for (int i = 0; i < 8; ++i) {
    const uint64_t key = client.any_key(pool);
    const std::string from = client.shared(pool, key) + "/e-" + std::to_string(key);
    const std::string to = client.shared(pool, key) + "/l-" + std::to_string(key);
    if (client.call(Call::kLink, to, [&] { return ::link(from.c_str(), to.c_str()); }) != 0 &&
        errno == EEXIST)
      client.call(Call::kUnlink, to, [&] { return ::unlink(to.c_str()); });
  }
}

// An entry that is read goes on being read when its name has gone.
void read_without_a_name(Client& client) {
  OpenedEntry opened = open_any(client);
  auto& [name, path, file] = opened;
  if (file.fd() < 0) return;
  client.call(Call::kUnlink, path, [&] { return ::unlink(path.c_str()); });
  if (client.random().one_in(3)) ::usleep(static_cast<useconds_t>(client.random().below(100'000)));
  read_open(client, file, path, name);
  client.close(file, path);
}

}  // namespace

const std::vector<Action>& entry_actions() {
  static const std::vector<Action> kActions = {{"store", 60, store_some},
                                               {"store and fsync", 8, store_durable},
                                               {"flood of small", 8, flood_small},
                                               {"read", 160, read_some},
                                               {"read small", 20, read_others_small},
                                               {"map", 20, map_some},
                                               {"exchange", 10, exchange},
                                               {"link", 10, link_some},
                                               {"read without a name", 8, read_without_a_name}};
  return kActions;
}

}  // namespace kvcachefs::soak
