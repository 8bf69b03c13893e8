#include "tier/open_disk_tier.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/size.h"
#include "tier/spill_orders.h"
#include "tier/spill_target.h"

namespace kvcachefs {
namespace {

Result<std::unique_ptr<Catalog>> open_catalog(const std::string& path) {
  const std::string::size_type slash = path.rfind('/');
  // /var/lib/kvcachefs may not be there yet; what a user names has to have its parent.
  if (path.starts_with("/var/lib/kvcachefs/"))
    if (auto made = sys::make_directories(path.substr(0, slash), 0700); !made) return pass(made);
  return Catalog::open(path);
}

bool is_block_device(const std::string& path) {
  auto plain = sys::open_at(AT_FDCWD, path.c_str(), O_PATH);
  if (!plain) return false;
  auto found = sys::stat_of(plain->get());
  return found && S_ISBLK(found->st_mode);
}

}  // namespace

Result<void> open_disk_tier(Pool& pool, const PoolOptions& options) {
  const std::string catalog_path = options.catalog_path.empty()
                                       ? default_catalog_path(options, is_block_device(options.spill_path))
                                       : options.catalog_path;
  auto catalog = open_catalog(catalog_path);
  if (!catalog)
    return fail(catalog.error().code, fmt::format("pool {}: {}", pool.name(), catalog.error().message));
  auto known = (*catalog)->setting(kSpillUuidSetting);
  if (!known) return pass(known);
  std::optional<Uuid> expected;
  if (*known && (*known)->size() == sizeof(Uuid)) {
    expected.emplace();
    std::memcpy(expected->data(), (*known)->data(), sizeof(Uuid));
  }
  auto target = open_spill_target({.path = options.spill_path,
                                   .size_bytes = options.spill_size_bytes,
                                   .unit_bytes = options.spill_unit_bytes,
                                   .force = options.spill_force,
                                   .uuid = expected});
  if (!target)
    return fail(target.error().code, fmt::format("pool {}: {}", pool.name(), target.error().message));
  const std::string uuid(reinterpret_cast<const char*>(target->uuid.data()), target->uuid.size());
  if (*known != uuid) {
    // A disk that is new to the catalog holds nothing that it knows of.
    if (auto cleared = (*catalog)->clear(); !cleared) return cleared;
    if (auto put = (*catalog)->put_setting(kSpillUuidSetting, uuid); !put) return put;
  }
  const uint64_t size_bytes = target->size_units * target->unit_bytes;
  auto attached =
      pool.attach_disk(std::move(target->device), std::move(*catalog), target->unit_bytes, options);
  if (attached)
    log_info("pool {}: spills to {} ({}), catalog {}, durability {}", pool.name(), options.spill_path,
             format_size(size_bytes), catalog_path, durability_name(durability_of(options)));
  return attached;
}

}  // namespace kvcachefs
