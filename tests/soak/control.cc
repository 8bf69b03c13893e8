// Readers of what a pool tells of itself, and the orders of its owner.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>

#include "tests/soak/client.h"

namespace kvcachefs::soak {
namespace {

// A control file is read as a client reads it: all errors are those of one call.
void read_control(Client& client, const std::string& path) {
  std::string piece(size_t{64} << 10, '\0');
  client.call(Call::kReadControl, path, [&]() -> long {
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.fd() < 0) return -1;
    for (;;) {
      const long count = ::read(file.fd(), piece.data(), piece.size());
      if (count <= 0) return count;
    }
  });
}

void look(Client& client) {
  const std::string pool = client.any_pool();
  static constexpr std::array<const char*, 8> kFiles = {"stats", "stats.json", "users",    "numa",
                                                        "size",  "evict",      "prefetch", "scrub"};
  for (int i = 0; i < 6; ++i)
    read_control(client, client.root(pool) + "/.pool/" + kFiles[client.random().below(kFiles.size())]);
  for (const char* const file : {"stats", "metrics", "stats.json"})
    read_control(client, client.place().mount + "/.kvcachefs/" + file);
  struct statvfs status {};
  client.call(Call::kStatFileSystem, pool, [&] { return ::statvfs(client.root(pool).c_str(), &status); });
}

void list_entries(Client& client) {
  read_control(client, client.root(client.any_pool()) + "/.pool/entries");
}

void order(Client& client, const std::string& pool, const std::string& file, const std::string& value) {
  client.call(Call::kOrder, file + " " + value, [&]() -> long {
    errno = test::write_once(client.root(pool) + "/.pool/" + file, value);
    return errno == 0 ? 0 : -1;
  });
}

void command(Client& client) {
  const bool has_disk = client.random().one_in(2);
  const std::string& pool = has_disk ? client.place().pools.back() : client.place().pools.front();
  const uint64_t whole =
      (has_disk ? client.place().pool_bytes.back() : client.place().pool_bytes.front()) >> 20;
  Random& random = client.random();
  const auto from = [&](uint64_t least, uint64_t most) {
    return std::to_string(least + random.below(most - least + 1));
  };
  const auto one_of = [&](const std::vector<std::string>& all) { return all[random.below(all.size())]; };
  switch (random.below(has_disk ? 14 : 9)) {
    case 0:
    case 1:
      client.record().size_order_begins_or_ends();
      order(client, pool, "size", from(whole * 3 / 4, whole) + "M");
      return client.record().size_order_begins_or_ends();
    case 2:
      return order(client, pool, "user_share", from(10, 40) + "%");
    case 3:
      return order(client, pool, "evict", one_of({"5%", "25%", "16M", "200 entries"}));
    case 4:
      return order(client, pool, "policy", one_of({"lru", "lfu", "fifo", "priority"}));
    case 5:
      return order(client, pool, "max_entries",
                   from(client.place().most_entries / 2, client.place().most_entries));
    case 6:
      return order(client, pool, "max_directories",
                   from(client.place().most_directories / 2, client.place().most_directories));
    case 7:
      order(client, pool, "max_xattrs", from(8, 64));
      return order(client, pool, "max_xattr_bytes", from(16, 64) + "K");
    case 8:
      return order(client, pool, "watermarks", one_of({"95:98", "80:90", "97:99"}));
    case 9:
      return order(client, pool, "durability", one_of({"none", "writeback", "writeback"}));
    case 10:
      return order(client, pool, "admission", one_of({"all", "all", "second_access", "tinylfu"}));
    case 11:
      return order(client, pool, "auto_prefetch", one_of({"on", "off"}));
    case 12:
      return order(client, pool, "scrub", one_of({"start 50M", "stop"}));
    default:
      return order(client, pool, "evict", "100%");  // what is read next is cold
  }
}

void prefetch(Client& client) {
  const std::string& pool = client.place().pools.back();
  std::string names;
  for (int i = 0; i < 30; ++i) {
    const uint64_t key = client.any_key(pool);
    names += "shared-" + std::to_string(key % 8) + "/e-" + std::to_string(key) + "\n";
  }
  order(client, pool, "prefetch", names);
}

}  // namespace

const std::vector<Action>& control_actions() {
  static const std::vector<Action> kActions = {{"look", 16, look},
                                               {"list entries", 10, list_entries, true},
                                               {"command", 40, command, true},
                                               {"prefetch", 8, prefetch, true}};
  return kActions;
}

}  // namespace kvcachefs::soak
