#include "tier/pool/open_disk_tier.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/log.h"
#include "base/mountinfo.h"
#include "base/risky_read.h"
#include "base/size.h"
#include "base/sys_disk.h"
#include "tier/disk/spill_orders.h"
#include "tier/disk/spill_target.h"

namespace kvcachefs {
namespace {

// All clients of all pools wait for a takeover. A pool without its disk after this time is served without it
// at first (tier/disk/away_disk.h).
constexpr std::chrono::milliseconds kAdoptedPatience{500};
constexpr std::chrono::milliseconds kBetweenCatalogTries{10};

Result<std::unique_ptr<Catalog>> open_catalog(const std::string& path) {
  const std::string::size_type slash = path.rfind('/');
  // /var/lib/kvcachefs may not exist yet; a path that a user names must have its parent directory.
  if (path.starts_with("/var/lib/kvcachefs/"))
    if (auto made = sys::make_directories(path.substr(0, slash), 0700); !made) return pass(made);
  return Catalog::open(path);
}

// The catalog's lock may still be held if it has just been given up, like that of the disk
// (SpillTargetOptions::patience).
Result<std::unique_ptr<Catalog>> open_present_catalog(const std::string& path,
                                                      std::chrono::milliseconds patience) {
  if (RiskyRead::was_deadly(path))
    return fail(EUCLEAN,
                path + ": to read it has ended a process: it is damaged, or its disk does not give it");
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    auto catalog = Catalog::open(path, {.create = false});
    if (catalog || catalog.error().code != EBUSY || std::chrono::steady_clock::now() >= deadline)
      return catalog;
    std::this_thread::sleep_for(kBetweenCatalogTries);
  }
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

// The UUID for the disk of a catalog that has had no disk yet.
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

std::string catalog_path_of(const PoolOptions& options) {
  return options.catalog_path.empty() ? default_catalog_path(options, is_block_device(options.spill_path))
                                      : options.catalog_path;
}

// The daemon would wait for itself.
Result<void> check_catalog_place(const std::string& path) {
  std::filesystem::path there = path;
  auto fd = sys::open_at(AT_FDCWD, there.c_str(), O_PATH);
  while (!fd && there.has_relative_path())
    fd = sys::open_at(AT_FDCWD, (there = there.parent_path()).c_str(), O_PATH);
  const auto memory = fd ? memory_file_system(fd->get()) : pass(fd);
  if (!memory || *memory != kFileSystemType) return {};
  return fail(EINVAL,
              fmt::format("the catalog {} lies on {}, which cannot keep what it keeps", path, *memory));
}

SpillTargetOptions target_of(const PoolOptions& options, bool whole) {
  return {.path = options.spill_path,
          .size_bytes = options.spill_size_bytes,
          .unit_bytes = options.spill_unit_bytes,
          .whole = whole};
}

}  // namespace

Result<void> open_disk_tier(Pool& pool, const PoolOptions& options, Attaching how) {
  const bool adopted = how == Attaching::kAdopted;
  const std::string catalog_path = catalog_path_of(options);
  if (auto good = adopted ? Result<void>() : check_catalog_place(catalog_path); !good)
    return fail(good.error().code, fmt::format("pool {}: {}", pool.name(), good.error().message));
  auto catalog = adopted ? open_present_catalog(catalog_path, kAdoptedPatience) : open_catalog(catalog_path);
  if (!catalog)
    return fail(catalog.error().code, fmt::format("pool {}: {}", pool.name(), catalog.error().message));
  SpillTargetOptions wanted = target_of(options, adopted);
  wanted.force = options.spill_force && !adopted;
  if (adopted) wanted.patience = kAdoptedPatience;
  auto known = uuid_in(**catalog, kSpillUuidSetting);
  if (!known) return pass(known);
  wanted.uuid = *known;
  // Another catalog lies where the pool's was: a disk that it does not know would be taken for an empty one.
  if (!wanted.uuid && adopted)
    return fail(ESTALE, fmt::format("pool {}: the catalog {} knows of no disk", pool.name(), catalog_path));
  if (!wanted.uuid) {
    auto made = new_uuid(**catalog);
    if (!made) return pass(made);
    wanted.new_uuid = *made;
  }
  auto target = open_spill_target(wanted);
  if (!target)
    return fail(target.error().code, fmt::format("pool {}: {}", pool.name(), target.error().message));
  if (*known != target->uuid) {
    // The catalog is cleared, because a disk that is new to it holds nothing that it names.
    if (auto cleared = (*catalog)->clear(); !cleared) return cleared;
    if (auto put = put_uuid(**catalog, kSpillUuidSetting, target->uuid); !put) return put;
  }
  const uint64_t size_bytes = target->size_units * target->unit_bytes;
  const auto attach = adopted                     ? &Recovery::take_disk
                      : how == Attaching::kBehind ? &Recovery::begin_attaching
                                                  : &Recovery::attach_disk;
  auto attached =
      (pool.recovery().*attach)(std::move(target->device), std::move(*catalog), target->unit_bytes, options);
  if (!attached) return attached;
  const Durability durability = durability_of(options);
  log_info("pool {}: spills to {} ({}), catalog {}, durability {}", pool.name(), options.spill_path,
           format_size(size_bytes), catalog_path, durability_name(durability));
  if (durability != Durability::kNone && size_bytes < options.size_bytes)
    log_warning(
        "pool {}: its disk tier ({}) is smaller than its memory ({}): under durability {} all entries go to "
        "the disk, so the pool keeps no more than the disk takes; durability=none uses both",
        pool.name(), format_size(size_bytes), format_size(options.size_bytes), durability_name(durability));
  return {};
}

Result<void> probe_disk_tier(const PoolOptions& options) {
  SpillTargetOptions wanted = target_of(options, true);
  wanted.patience = std::chrono::milliseconds(0);
  auto catalog = open_present_catalog(catalog_path_of(options), wanted.patience);
  if (!catalog) return pass(catalog);
  auto known = uuid_in(**catalog, kSpillUuidSetting);
  if (known && !*known) known = uuid_in(**catalog, kNewSpillUuidSetting);
  if (!known) return pass(known);
  wanted.uuid = *known;
  return probe_spill_target(wanted);
}

void try_catalog_again(const PoolOptions& options) {
  RiskyRead::forget(catalog_path_of(options));
}

Result<void> look_at_disk_tier(const PoolOptions& options) {
  const std::string catalog = catalog_path_of(options);
  if (auto there = sys::open_at(AT_FDCWD, catalog.c_str(), O_RDONLY | O_DIRECTORY); !there)
    return fail(there.error().code, fmt::format("pool {}: its catalog {} cannot be opened: {}", options.name,
                                                catalog, sys::error_text(there.error().code)));
  auto looked = look_at_spill_target(target_of(options, true));
  if (looked) return looked;
  return fail(looked.error().code, fmt::format("pool {}: {}", options.name, looked.error().message));
}

}  // namespace kvcachefs
