#include "daemon/cli/commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ostream>

#include "base/size.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "daemon/cli/progress.h"
#include "daemon/config.h"
#include "tier/catalog/catalog_check.h"
#include "tier/disk/spill_orders.h"
#include "tier/disk/spill_target.h"

namespace kvcachefs {
namespace {

// The check waits this long for a daemon that has just been killed, whose writes the kernel still completes.
// A daemon that serves does not give the disk up.
constexpr std::chrono::milliseconds kPatience{2000};

CliResult<PoolOptions> described_pool(const CliArguments& arguments) {
  PoolOptions pool;
  pool.name = arguments.pool;
  if (arguments.config_file.empty()) {
    for (const auto& [key, value] : arguments.settings) {
      Result<void> set = set_pool_option(pool, key, value, kAnyMemoryBytes);
      if (!set) return stop(kUsage, set.error().message);
    }
    return pool;
  }
  Config config;
  PoolOrigins origins;
  Result<void> read = read_config_file(arguments.config_file, kAnyMemoryBytes, config, origins);
  if (!read) return stop(kUsage, read.error().message);
  const auto found = std::ranges::find(config.pools, arguments.pool, &PoolOptions::name);
  if (found == config.pools.end())
    return stop(kUsage, fmt::format("{} has no pool {}", arguments.config_file, arguments.pool));
  if (found->spill_path.empty())
    return stop(kUsage, fmt::format("{}: pool {} has no disk tier", arguments.config_file, arguments.pool));
  return *found;
}

// What the tool can tell of the disk without opening it for writing.
struct Disk {
  bool is_device = false;
  uint64_t file_bytes = 0;
  SuperblockFound found = SuperblockFound::kNone;
  Superblock superblock;

  uint64_t superblock_bytes() const { return superblock.size_units * superblock.unit_bytes; }
};

CliResult<Disk> opened_disk(const std::string& path) {
  const auto refuse = [&](const Error& error) {
    return stop(kFailure, fmt::format("{}: {}", path, sys::error_text(error.code)));
  };
  Result<UniqueFd> file = sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_NONBLOCK);
  if (!file) return refuse(file.error());
  Result<struct stat> status = sys::stat_of(file->get());
  if (!status) return refuse(status.error());
  Disk disk;
  disk.is_device = S_ISBLK(status->st_mode);
  disk.file_bytes = static_cast<uint64_t>(status->st_size);
  std::array<char, kSuperblockBytes> block{};
  Result<size_t> read = sys::read_at(file->get(), block, 0);
  if (!read) return refuse(read.error());
  uint32_t version = 0;
  disk.found = read_superblock(std::as_bytes(std::span(block)), disk.superblock, version);
  return disk;
}

CliResult<std::unique_ptr<Catalog>> open_catalog(const PoolOptions& pool, const Disk& disk) {
  const std::string path =
      pool.catalog_path.empty() ? default_catalog_path(pool, disk.is_device) : pool.catalog_path;
  Result<std::unique_ptr<Catalog>> catalog = Catalog::open(path, {.create = false});
  if (!catalog && catalog.error().code == ENOENT)
    return stop(kFailure, fmt::format("there is no catalog at {}", path));
  return catalog;
}

// The disk is opened as it is: it is not created, and a file that was visibly cut is not enlarged.
CliResult<SpillTarget> open_disk(const PoolOptions& pool, const Disk& disk, Catalog& catalog, bool repair) {
  Result<std::optional<std::string>> setting = catalog.setting(kSpillUuidSetting);
  if (!setting) return pass(setting);
  SpillTargetOptions options{.path = pool.spill_path, .patience = kPatience};
  options.uuid.emplace();
  if (!*setting || (*setting)->size() != options.uuid->size())
    return stop(kFailure, "the catalog does not say which disk it is of");
  std::memcpy(options.uuid->data(), (*setting)->data(), options.uuid->size());
  if (disk.found == SuperblockFound::kOurs) {
    options.unit_bytes = disk.superblock.unit_bytes;
    if (disk.is_device) options.size_bytes = disk.superblock_bytes();
    if (!disk.is_device && disk.file_bytes < disk.superblock_bytes() && !repair) {
      return stop(kFailure, fmt::format("{} was cut to {}, it had {}; --repair discards what lay there",
                                        pool.spill_path, format_size(disk.file_bytes),
                                        format_size(disk.superblock_bytes())));
    }
  }
  return open_spill_target(options);
}

void show_report(const CheckReport& report, const SpillTarget& target, bool data, std::ostream& out) {
  for (const CheckProblem& problem : report.problems) {
    const std::string place = !problem.path.empty() ? problem.path
                              : problem.id != 0     ? fmt::format("(id {})", problem.id)
                                                    : std::string("(unknown)");
    out << fmt::format("{}: {}\n", place, problem.what);
  }
  if (report.problem_count > report.problems.size())
    out << fmt::format("and {} more\n", report.problem_count - report.problems.size());
  out << fmt::format("{} entries of {}{}, {} of {} used\n", report.files, format_size(report.content_bytes),
                     data ? ", read" : "", format_size(report.used_units * target.unit_bytes),
                     format_size(target.size_units * target.unit_bytes));
}

}  // namespace

CliResult<void> check(const CliArguments& arguments, const CliEnvironment& environment) {
  CliResult<PoolOptions> pool = described_pool(arguments);
  if (!pool) return std::unexpected(pool.error());
  CliResult<Disk> disk = opened_disk(pool->spill_path);
  if (!disk) return std::unexpected(disk.error());
  CliResult<std::unique_ptr<Catalog>> catalog = open_catalog(*pool, *disk);
  if (!catalog) return std::unexpected(catalog.error());
  CliResult<SpillTarget> target = open_disk(*pool, *disk, **catalog, arguments.repair);
  if (!target) return std::unexpected(target.error());
  Result<CheckReport> report;
  {
    ProgressBar bar(environment);
    report = check_catalog(**catalog, {.unit_bytes = target->unit_bytes,
                                       .size_units = target->size_units,
                                       .device = arguments.data ? target->device.get() : nullptr,
                                       .repair = arguments.repair,
                                       .progress = [&](uint64_t done_bytes, uint64_t all_bytes) {
                                         bar.show_bytes(done_bytes, all_bytes);
                                       }});
  }
  if (!report) return pass(report);
  show_report(*report, *target, arguments.data, environment.out);
  if (report->whole()) return {};
  if (report->repaired)
    environment.out << fmt::format("repaired {} problems\n", report->problem_count - report->unreadable);
  if (arguments.repair && report->unreadable > 0)
    return stop(kFailure, fmt::format("{} entries could not be read and are kept", report->unreadable));
  if (report->repaired) return {};
  return stop(kFailure, fmt::format("{} problems{}", report->problem_count,
                                    arguments.repair ? "" : "; --repair discards what is damaged"));
}

}  // namespace kvcachefs
