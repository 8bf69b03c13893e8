#include "fs/control/server_files.h"

#include <fmt/format.h>

#include <array>

#include "base/clock.h"

namespace kvcachefs {
namespace {

Result<std::string> show_version(const ControlledServer& server) {
  return fmt::format("kvcachefs {}\n", server.info.version);
}

Result<std::string> show_stats(const ControlledServer& server) {
  return render_text(make_server_stats(server.info, server.pool_count(), now_ns()));
}

Result<std::string> show_stats_json(const ControlledServer& server) {
  const std::vector<PoolReport> pools = server.pool_reports();
  return render_json(make_server_stats(server.info, pools.size(), now_ns()), pools);
}

Result<std::string> show_metrics(const ControlledServer& server) {
  const std::vector<PoolReport> pools = server.pool_reports();
  return render_metrics(make_server_stats(server.info, pools.size(), now_ns()), pools);
}

// The line `reason` has a sentence as its value.
Result<std::string> show_upgrades(const ControlledServer& server) {
  const Children::Upgrades upgrades = server.upgrades();
  return fmt::format("done {}\nrefused {}\nreason {}\n", upgrades.done, upgrades.refused, upgrades.reason);
}

Result<std::string> show_nothing(const ControlledServer&) {
  return std::string();
}

Result<void> write_configure(const ControlledServer& server, std::string_view text) {
  return server.configure(text);
}

Result<std::unique_ptr<ControlReader>> stream_access_log(const ControlledServer& server) {
  return server.access_log();
}

constexpr std::array kServerFiles = {
    ServerFile{.name = "version", .number = 1, .text = show_version},
    ServerFile{.name = "stats", .number = 2, .text = show_stats},
    ServerFile{.name = "stats.json", .number = 3, .text = show_stats_json, .gathers = true},
    ServerFile{.name = "upgrades", .number = 4, .text = show_upgrades},
    ServerFile{.name = "metrics", .number = 5, .text = show_metrics, .gathers = true},
    ServerFile{.name = "configure",
               .number = 6,
               .text = show_nothing,
               .write = write_configure,
               .of_administrator = true},
    ServerFile{.name = "access_log", .number = 7, .stream = stream_access_log, .of_administrator = true},
};
static_assert(has_own_numbers(kServerFiles));

}  // namespace

std::span<const ServerFile> server_files() {
  return kServerFiles;
}

}  // namespace kvcachefs
