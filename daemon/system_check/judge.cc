#include "daemon/system_check/judge.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sys_disk.h"

namespace kvcachefs {
namespace {

SystemRow judge_rights(const SystemFacts& facts) {
  SystemRow row{
      .what = "rights",
      .cost = "the daemon mounts, opens inodes by handle and changes files of all users: it does not start",
      .remedy =
          "run it as root of the host, by sudo or systemd; in a container, docker run --cap-add SYS_ADMIN "
          "--cap-add DAC_READ_SEARCH, without a user namespace",
      .needed = true};
  if (facts.is_root && facts.missing_rights.empty()) {
    row.state = SystemRow::State::kPresent;
    row.finding = "read: root, with the capabilities that are used";
    if (!facts.has_hosts_users) row.finding += ", but of a user namespace that is not the host's";
    return row;
  }
  row.state = SystemRow::State::kAbsent;
  row.finding = facts.is_root ? "read: root, but without " : "read: not root, and without ";
  row.finding += fmt::format("{}", fmt::join(facts.missing_rights, ", "));
  if (facts.missing_rights.empty()) row.finding = "read: not root";
  return row;
}

std::string why_no_mounts(const MountTrials& trials) {
  if (trials.own_mounts.failed())
    return "a mount namespace of its own is not to be had: " + sys::error_text(trials.own_mounts.code());
  if (trials.tmpfs.failed()) return "no tmpfs could be mounted: " + sys::error_text(trials.tmpfs.code());
  if (trials.fuse.device.failed()) return "/dev/fuse cannot be opened";
  return "FUSE could not be mounted";
}

}  // namespace

std::string not_tried(const SystemFacts& facts, std::string_view since) {
  std::string text = "not tried, because " + why_no_mounts(facts.trials);
  if (!since.empty()) text += fmt::format("; Linux has it from {} on, this is {}", since, facts.release);
  return text;
}

std::vector<SystemRow> judge_system(const SystemFacts& facts) {
  std::vector<SystemRow> rows{judge_rights(facts)};
  for (const auto judge : {judge_fuse, judge_memory, judge_disk})
    for (SystemRow& row : judge(facts)) rows.push_back(std::move(row));
  return rows;
}

bool can_serve(const std::vector<SystemRow>& rows) {
  return std::ranges::all_of(
      rows, [](const SystemRow& row) { return !row.needed || row.state == SystemRow::State::kPresent; });
}

}  // namespace kvcachefs
