#include "fs/control/pool_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <vector>

#include "base/fstab.h"
#include "base/key_value.h"
#include "base/size.h"
#include "fs/control/entries_reader.h"
#include "fs/control/index_file.h"
#include "fs/control/orders.h"
#include "fs/control/queries.h"

namespace kvcachefs {
namespace {

std::unexpected<Error> wrong_text(ControlledPool& target, std::string message) {
  return fail(EINVAL, fmt::format("pool {}: {}", target.pool->name(), message));
}

// The key of a setting, as a template argument.
template <size_t kSize>
struct Key {
  consteval Key(const char (&literal)[kSize]) { std::ranges::copy(literal, text); }

  char text[kSize];
};

// A durability that is not set is shown as the default that applies.
PoolOptions present_options(ControlledPool& target) {
  PoolOptions options = target.pool->settings().options();
  options.durability = durability_of(options);
  return options;
}

template <Key kKey>
Result<std::string> show(ControlledPool& target) {
  return pool_option_text(present_options(target), kKey.text) + "\n";
}

Result<std::string> show_forget_agent(ControlledPool&) {
  return "Write the name of an agent: the agent's entries stay, and belong to no agent from then on.\n";
}

Result<std::string> show_index(ControlledPool&) {
  return "Write records that say what entries hold: index NAME tokens=1,2,3 model=NAME\n";
}

// Removes the attribute from each entry of the agent, so that the order lasts over a restart.
Result<void> write_forget_agent(ControlledPool& target, std::string_view text) {
  const std::string_view agent = text.substr(0, text.size() - (text.ends_with('\n') ? 1 : 0));
  if (agent.empty()) return wrong_text(target, "forget_agent: there is no name");
  const EntryIndex::Filter his(Attribute::kAgent, std::string(agent));
  for (size_t left = SIZE_MAX;;) {
    const auto found = target.pool->insight().index().having({&his, 1});
    if (found.empty()) return {};
    if (found.size() >= left)
      return fail(EBUSY, fmt::format("pool {}: {} entries of {} are left", target.pool->name(), left, agent));
    left = found.size();
    for (const uint64_t ino : found) {
      if (auto takes_more = wait_for_catalog(*target.pool); !takes_more) return takes_more;
      (void)target.pool->tree().remove_xattr(ino, "user.kv.agent");
    }
  }
}

// The keys and texts are those of the command line.
template <Key kKey>
Result<void> write(ControlledPool& target, std::string_view text) {
  const PoolOptions present = present_options(target);
  PoolOptions wanted = present;
  if (Result<void> parsed = set_pool_option(wanted, kKey.text, trimmed(text), target.pools.memory_bytes());
      !parsed)
    return wrong_text(target, parsed.error().message);
  if (const PoolSetting& setting = *find_pool_setting(kKey.text); setting.needs_disk()) {
    // A pool without a disk tier may be told what it has already.
    if (setting.get(wanted) == setting.get(present)) return {};
    if (present.spill_path.empty())
      if (auto tier = target.pool->disk().needed(); !tier) return pass(tier);
  }
  return target.apply(kKey.text, wanted);
}

Result<std::string> show_entry_size(ControlledPool& target) {
  const uint64_t learned_bytes = target.pool->capacity().learned_entry_bytes();
  if (target.pool->settings().options().entry_size_bytes != 0 || learned_bytes == 0)
    return show<"entry_size">(target);
  return fmt::format("auto {}\n", format_size_exact(learned_bytes));
}

Result<std::string> show_evict(ControlledPool& target) {
  const EvictResult last = target.pool->evictor().last_evict();
  return fmt::format("evicted {} entries {}\n", last.entries, format_size(last.bytes));
}

Result<void> write_evict(ControlledPool& target, std::string_view text) {
  Result<EvictOrder> order = parse_evict_order(text);
  if (!order) return wrong_text(target, "evict: " + order.error().message);
  // Over io_uring this thread answers all requests of its processor, so an order that waits would hold up
  // all callers there.
  order->patient = !target.over_io_uring;
  target.pool->evictor().evict_now(*order);
  return {};
}

Result<std::string> show_spill(ControlledPool& target) {
  return spill_place_text(target.pool->settings().options()) + "\n";
}

// The check is for orders that only the administrator may give, in a file that the owner may write too.
Result<void> need_administrator(ControlledPool& target, std::string_view file) {
  if (target.authority == Authority::kAdministrator) return {};
  const std::string name = target.pool->name();
  return fail(EPERM, fmt::format("pool {}: {}: that is the administrator's to say, in .kvcachefs/pools/{}/{}",
                                 name, file, name, file));
}

Result<void> write_spill(ControlledPool& target, std::string_view text) {
  if (Result<void> may = need_administrator(target, "spill"); !may) return may;
  const PoolOptions present = target.pool->settings().options();
  PoolOptions wanted = present;
  if (Result<void> parsed = set_spill_order(wanted, trimmed(text)); !parsed) {
    return wrong_text(target, parsed.error().message);
  }
  if (spill_order_text(wanted) == spill_order_text(present)) return {};
  if (!wanted.spill_path.empty()) {
    if (auto mounted = check_disks_are_mounted(present.name, wanted.spill_path, wanted.catalog_path);
        !mounted)
      return mounted;
    return target.apply("spill", wanted);
  }
  return fail(EOPNOTSUPP, fmt::format("pool {}: spill: {} cannot be taken away while the pool serves",
                                      present.name, present.spill_path));
}

Result<std::string> show_prefetch(ControlledPool& target) {
  const PrefetchProgress progress = target.pool->prefetcher().progress();
  return fmt::format("queued {}\ndone {}\nfailed {}\ndropped {}\nbytes {}\n", progress.queued, progress.done,
                     progress.failed, progress.dropped, progress.bytes);
}

Result<void> write_prefetch(ControlledPool& target, std::string_view text) {
  Result<std::vector<PrefetchOrder>> orders = parse_prefetch_orders(text);
  if (!orders) return wrong_text(target, "prefetch: " + orders.error().message);
  if (orders->empty()) return {};
  return target.pool->prefetcher().prefetch(*orders);
}

Result<std::string> show_scrub(ControlledPool& target) {
  const ScrubProgress progress = target.pool->disk_requests().scrub_progress();
  const char* const idle = progress.stopped_by_errors ? "stopped_by_errors" : "idle";
  return fmt::format("state {}\nentries_done {}\nentries_total {}\nbytes {}\ndamaged {}\nunreadable {}\n",
                     progress.running ? "running" : idle, progress.entries_done, progress.entries_total,
                     progress.bytes, progress.damaged, progress.unreadable);
}

Result<void> write_scrub(ControlledPool& target, std::string_view text) {
  Result<ScrubOrder> order = parse_scrub_order(text);
  if (!order) return wrong_text(target, "scrub: " + order.error().message);
  if (order->start && order->rate_bytes_per_s > kDefaultScrubBytesPerSecond) {
    if (Result<void> may = need_administrator(target, "scrub"); !may) return may;
  }
  DiskRequests& disk_requests = target.pool->disk_requests();
  return order->start ? disk_requests.start_scrub(order->rate_bytes_per_s) : disk_requests.stop_scrub();
}

Result<std::string> show_stats(ControlledPool& target) {
  return render_text(target.report().stats);
}
Result<std::string> show_stats_json(ControlledPool& target) {
  return render_json(target.report().stats);
}

Result<std::string> show_numa(ControlledPool& target) {
  Insight& insight = target.pool->insight();
  std::string text;
  for (const NodeUsage& node : insight.numa_survey().recent(insight.usage().entries)) {
    fmt::format_to(std::back_inserter(text), "node {} bytes {} huge {}\n", node.node, node.bytes,
                   node.huge_bytes);
  }
  return text;
}

Result<std::string> show_users(ControlledPool& target) {
  std::string text = fmt::format("share {}\n", target.pool->insight().usage().user_share_bytes);
  for (const Shares::User& user : target.pool->insight().users()) {
    fmt::format_to(std::back_inserter(text), "user {} bytes {} disk {} over {}\n",
                   user.uid ? std::to_string(*user.uid) : "others", user.memory_bytes, user.disk_bytes,
                   user.over ? "yes" : "no");
  }
  return text;
}

Result<std::unique_ptr<ControlReader>> stream_entries(ControlledPool& target) {
  return std::make_unique<EntriesReader>(
      Insight::kListingShards,
      [&insight = target.pool->insight()](size_t shard) { return insight.entries_of(shard); },
      [&insight = target.pool->insight()](sys::Handle file) { return insight.listing_of(file); });
}

// `size set 64G`: where each value comes from, and the value, which may be empty.
Result<std::string> show_settings(ControlledPool& target) {
  using Origin = SettingOrigins::Origin;
  PoolOptions present = present_options(target);
  if (const auto root = target.pool->inodes().attributes(target.pool->root_ino())) {
    present.mode = root->st_mode & 07777;
    present.uid = root->st_uid;
    present.gid = root->st_gid;
  }
  std::string text;
  for (const PoolSetting& setting : pool_settings()) {
    const auto its =
        target.origins == nullptr ? SettingOrigins::Answer() : target.origins->origin(present, setting.key);
    const char* const origin = its.origin == Origin::kDefault      ? "default"
                               : its.origin == Origin::kConfigured ? "configured"
                               : its.is_kept                       ? "set"
                                                                   : "set_not_kept";
    fmt::format_to(std::back_inserter(text), "{} {} {}\n", setting.key, origin, setting.get(present));
  }
  return text;
}

// A setting that cannot change while the pool serves, such as the place of the disk tier, comes back at the
// next start.
Result<void> write_reset(ControlledPool& target, std::string_view text) {
  const std::string_view key = trimmed(text);
  const PoolSetting* const setting = find_pool_setting(key);
  if (setting == nullptr) return wrong_text(target, fmt::format("reset: unknown pool option '{}'", key));
  if (target.origins == nullptr) return fail(EOPNOTSUPP);
  if (!setting->is_live())
    return wrong_text(target,
                      fmt::format("reset: {} is an attribute of the pool's directory (chmod, chown)", key));
  const bool is_of_disk = setting->file == kSpillFile;
  if (is_of_disk)
    if (Result<void> may = need_administrator(target, "reset"); !may) return may;
  const PoolOptions present = present_options(target);
  PoolOptions wanted = target.origins->configured(present);
  wanted.durability = durability_of(wanted);
  const bool is_same = setting->get(wanted) == setting->get(present);
  if (!is_of_disk && !is_same)
    if (auto applied = target.apply(key, wanted); !applied) return applied;
  return target.origins->forget(target.pool->settings().options(), key);
}

constexpr std::array kFiles = {
    PoolFile{
        .name = "size", .number = 1, .text = show<"size">, .write = write<"size">, .of_administrator = true},
    PoolFile{.name = "policy", .number = 2, .text = show<"policy">, .write = write<"policy">},
    PoolFile{.name = "watermarks", .number = 3, .text = show<"watermarks">, .write = write<"watermarks">},
    PoolFile{.name = "entry_size", .number = 4, .text = show_entry_size, .write = write<"entry_size">},
    PoolFile{.name = "pinned_max",
             .number = 5,
             .text = show<"pinned_max">,
             .write = write<"pinned_max">,
             .of_administrator = true},
    PoolFile{.name = "evict", .number = 6, .text = show_evict, .write = write_evict},
    PoolFile{
        .name = "spill", .number = 7, .text = show_spill, .write = write_spill, .of_administrator = true},
    PoolFile{.name = "durability", .number = 8, .text = show<"durability">, .write = write<"durability">},
    PoolFile{.name = "admission", .number = 9, .text = show<"admission">, .write = write<"admission">},
    PoolFile{.name = "auto_prefetch", .number = 10, .text = show<"prefetch">, .write = write<"prefetch">},
    PoolFile{.name = "prefetch",
             .number = 11,
             .text = show_prefetch,
             .write = write_prefetch,
             .takes_lines = true},
    PoolFile{
        .name = "scrub", .number = 12, .text = show_scrub, .write = write_scrub, .of_administrator = true},
    PoolFile{.name = "stats", .number = 13, .text = show_stats, .gathers = true},
    PoolFile{.name = "stats.json", .number = 14, .text = show_stats_json, .gathers = true},
    PoolFile{.name = "numa", .number = 15, .text = show_numa, .gathers = true},
    PoolFile{.name = "entries",
             .number = 16,
             .stream = stream_entries,
             .of_administrator = true,
             .only_owner_reads = true,
             .gathers = true},
    PoolFile{.name = "size_max",
             .number = 17,
             .text = show<"size_max">,
             .write = write<"size_max">,
             .of_administrator = true,
             .owner_only_reads = true},
    PoolFile{.name = "max_entries", .number = 18, .text = show<"max_entries">, .write = write<"max_entries">},
    PoolFile{.name = "max_directories",
             .number = 19,
             .text = show<"max_directories">,
             .write = write<"max_directories">},
    PoolFile{.name = "user_share", .number = 20, .text = show<"user_share">, .write = write<"user_share">},
    PoolFile{.name = "users", .number = 21, .text = show_users},
    PoolFile{.name = "max_xattr_bytes",
             .number = 22,
             .text = show<"max_xattr_bytes">,
             .write = write<"max_xattr_bytes">},
    PoolFile{.name = "max_xattrs", .number = 23, .text = show<"max_xattrs">, .write = write<"max_xattrs">},
    PoolFile{.name = "settings", .number = 24, .text = show_settings},
    PoolFile{
        .name = "reset", .number = 25, .text = show_settings, .write = write_reset, .of_administrator = true},
    PoolFile{.name = "match", .number = 26, .answer = answer_match, .gathers = true},
    PoolFile{.name = "similar", .number = 27, .answer = answer_similar, .gathers = true},
    PoolFile{.name = "forget_agent", .number = 28, .text = show_forget_agent, .write = write_forget_agent},
    PoolFile{.name = "index", .number = 29, .text = show_index, .records = index_entries},
    PoolFile{.name = "leaf_first", .number = 30, .text = show<"leaf_first">, .write = write<"leaf_first">},
};
static_assert(has_own_numbers(kFiles));

}  // namespace

std::span<const PoolFile> pool_files() {
  return kFiles;
}

bool changes_settings(const PoolFile& file) {
  const auto settings = pool_settings();
  return file.name == "reset" || std::ranges::find(settings, file.name, &PoolSetting::file) != settings.end();
}

}  // namespace kvcachefs
