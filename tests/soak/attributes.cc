// Floods of modes, owners, times and extended attributes, and pins.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>

#include "tests/soak/client.h"
#include "tests/soak/stores.h"

namespace kvcachefs::soak {
namespace {

std::string any_small(Client& client) {
  const std::string pool = client.any_pool();
  const std::string name =
      "s-" + std::to_string(client.number()) + "-" + std::to_string(client.random().below(4000));
  const std::string path = client.own(pool) + "/" + name;
  if (::access(path.c_str(), F_OK) != 0) (void)store(client, client.own(pool), name, How::kRenamed);
  return path;
}

void flood_modes(Client& client) {
  const std::string path = any_small(client);
  static constexpr std::array<mode_t, 4> kModes = {0644, 0600, 0666, 0444};
  const uid_t uid = client.uid() == 0 ? 1000 : client.uid();
  for (int i = 0; i < 200 && client.goes_on(); ++i) {
    const std::array<timespec, 2> times = {timespec{1000 + i, 0}, timespec{2000 + i, 0}};
    switch (client.random().below(3)) {
      case 0:
        client.call(Call::kChangeMode, path, [&] { return ::chmod(path.c_str(), kModes[i % 4]); });
        break;
      case 1:
        client.call(Call::kChangeOwner, path, [&] { return ::chown(path.c_str(), uid, uid); });
        break;
      default:
        client.call(Call::kSetTimes, path,
                    [&] { return ::utimensat(AT_FDCWD, path.c_str(), times.data(), 0); });
    }
  }
  client.call(Call::kChangeMode, path, [&] { return ::chmod(path.c_str(), 0666); });
}

// What was set is there, or the entry has left.
void prove_xattr(Client& client, const std::string& path, const std::string& name,
                 const std::string& expected) {
  std::string value(size_t{64} << 10, '\0');
  const long size = client.call(Call::kGetXattr, path, [&] {
    return ::getxattr(path.c_str(), name.c_str(), value.data(), value.size());
  });
  if (size >= 0 && value.substr(0, static_cast<size_t>(size)) != expected)
    client.wrong("the value of " + name + " of " + path);
}

// The values depend on the name alone, because who stores the entry anew begins without any.
void flood_xattrs(Client& client) {
  const std::string path = any_small(client);
  const uint64_t count = client.random().one_in(4) ? 300 : 12;
  for (uint64_t i = 0; i < count && client.goes_on(); ++i) {
    const std::string name = "user.n" + std::to_string(i);
    const std::string value(1 + i * 977 % (i % 16 == 0 ? 16384 : 512), static_cast<char>('a' + i % 26));
    if (client.call(Call::kSetXattr, path, [&] {
          return ::setxattr(path.c_str(), name.c_str(), value.data(), value.size(), 0);
        }) != 0)
      break;
    if (i % 8 == 0) prove_xattr(client, path, name, value);
  }
  std::string names(size_t{64} << 10, '\0');
  client.call(Call::kListXattrs, path, [&] { return ::listxattr(path.c_str(), names.data(), names.size()); });
  for (uint64_t i = 0; i < count && client.random().below(8) != 0; ++i) {
    const std::string name = "user.n" + std::to_string(i);
    if (client.call(Call::kRemoveXattr, path, [&] { return ::removexattr(path.c_str(), name.c_str()); }) != 0)
      break;
  }
}

void pin(Client& client) {
  const std::string pool = client.any_pool();
  for (int i = 0; i < 6; ++i) {
    const uint64_t key = client.any_key(pool);
    const std::string path = client.shared(pool, key) + "/e-" + std::to_string(key);
    const char* const value = client.random().one_in(4) ? "1" : "0";
    client.call(Call::kPin, path,
                [&] { return ::setxattr(path.c_str(), "user.kvcachefs.pinned", value, 1, 0); });
    const std::string priority = std::to_string(client.random().below(1000));
    if (client.random().one_in(4))
      client.call(Call::kSetXattr, path, [&] {
        return ::setxattr(path.c_str(), "user.kv.priority", priority.data(), priority.size(), 0);
      });
    std::string value_of(128, '\0');
    for (const char* const fact : {"user.kvcachefs.tier", "user.kvcachefs.checksum", "user.kvcachefs.hits"})
      client.call(Call::kGetXattr, path,
                  [&] { return ::getxattr(path.c_str(), fact, value_of.data(), value_of.size()); });
  }
}

}  // namespace

const std::vector<Action>& attribute_actions() {
  static const std::vector<Action> kActions = {
      {"flood of modes", 6, flood_modes}, {"flood of xattrs", 8, flood_xattrs}, {"pin", 8, pin}};
  return kActions;
}

}  // namespace kvcachefs::soak
