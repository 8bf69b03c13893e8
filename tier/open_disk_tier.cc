#include "tier/open_disk_tier.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/size.h"
#include "base/sys_disk.h"
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

Result<std::optional<Uuid>> uuid_in(Catalog& catalog, std::string_view setting) {
  auto known = catalog.setting(setting);
  if (!known) return pass(known);
  if (!*known || (*known)->size() != sizeof(Uuid)) return std::nullopt;
  Uuid uuid{};
  std::memcpy(uuid.data(), (*known)->data(), sizeof uuid);
  return uuid;
}

Result<void> put_uuid(Catalog& catalog, std::string_view setting, const Uuid& uuid) {
  return catalog.put_setting(setting, std::string(reinterpret_cast<const char*>(uuid.data()), uuid.size()));
}

// Of a catalog that has had no disk yet.
Result<Uuid> new_uuid(Catalog& catalog) {
  auto begun = uuid_in(catalog, kNewSpillUuidSetting);
  if (!begun) return pass(begun);
  if (*begun) return **begun;
  auto made = sys::random_uuid();
  if (!made) return pass(made);
  if (auto put = put_uuid(catalog, kNewSpillUuidSetting, *made); !put) return pass(put);
  return *made;
}

bool is_block_device(const std::string& path) {
  auto plain = sys::open_at(AT_FDCWD, path.c_str(), O_PATH);
  if (!plain) return false;
  auto found = sys::stat_of(plain->get());
  return found && S_ISBLK(found->st_mode);
}

}  // namespace

Result<void> open_disk_tier(Pool& pool, const PoolOptions& options, Attaching how) {
  const std::string catalog_path = options.catalog_path.empty()
                                       ? default_catalog_path(options, is_block_device(options.spill_path))
                                       : options.catalog_path;
  auto catalog = open_catalog(catalog_path);
  if (!catalog)
    return fail(catalog.error().code, fmt::format("pool {}: {}", pool.name(), catalog.error().message));
  SpillTargetOptions wanted{.path = options.spill_path,
                            .size_bytes = options.spill_size_bytes,
                            .unit_bytes = options.spill_unit_bytes,
                            .force = options.spill_force};
  auto known = uuid_in(**catalog, kSpillUuidSetting);
  if (!known) return pass(known);
  wanted.uuid = *known;
  if (!wanted.uuid) {
    auto made = new_uuid(**catalog);
    if (!made) return pass(made);
    wanted.new_uuid = *made;
  }
  auto target = open_spill_target(wanted);
  if (!target)
    return fail(target.error().code, fmt::format("pool {}: {}", pool.name(), target.error().message));
  if (*known != target->uuid) {
    // A disk that is new to the catalog holds nothing that it knows of.
    if (auto cleared = (*catalog)->clear(); !cleared) return cleared;
    if (auto put = put_uuid(**catalog, kSpillUuidSetting, target->uuid); !put) return put;
  }
  const uint64_t size_bytes = target->size_units * target->unit_bytes;
  const auto attach = how == Attaching::kNew ? &Pool::attach_disk : &Pool::attach_adopted_disk;
  auto attached = (pool.*attach)(std::move(target->device), std::move(*catalog), target->unit_bytes, options);
  if (attached)
    log_info("pool {}: spills to {} ({}), catalog {}, durability {}", pool.name(), options.spill_path,
             format_size(size_bytes), catalog_path, durability_name(durability_of(options)));
  return attached;
}

}  // namespace kvcachefs
