// judge_disk(): what a disk tier takes.
#include <fmt/format.h>

#include <cerrno>

#include "base/size.h"
#include "base/sys_disk.h"
#include "daemon/system_check/judge.h"

namespace kvcachefs {
namespace {

using State = SystemRow::State;

SystemRow judge_uring(const SystemFacts& facts) {
  SystemRow row{.what = "io_uring for the disk",
                .state = State::kPresent,
                .finding = "tried: a ring was made",
                .cost = "no pool can have a disk tier",
                .needed = facts.disk.has_value()};
  if (facts.disk_uring) return row;
  row.state = State::kAbsent;
  row.finding = "tried: " + facts.disk_uring.error().message;
  row.remedy = "Linux 5.11 or later with CONFIG_IO_URING; in a container a seccomp profile that allows it";
  if (!facts.uring_disabled.empty() && facts.uring_disabled != "0") {
    row.finding =
        fmt::format("tried and read: refused, kernel.io_uring_disabled is {}", facts.uring_disabled);
    row.remedy = "sysctl kernel.io_uring_disabled=0";
  }
  if (facts.disk_uring.error().code == ENOMEM) row.remedy = "ulimit -l unlimited (LimitMEMLOCK= of systemd)";
  return row;
}

SystemRow judge_place(const DiskPlace& disk) {
  SystemRow row{.what = "place of the disk tier",
                .state = State::kAbsent,
                .cost = "a pool with this disk tier is refused",
                .needed = true};
  if (disk.found.failed()) {
    row.finding = fmt::format("tried: {}: {}", disk.looked_at, sys::error_text(disk.found.code()));
    row.remedy = "make the directory, or name a file in one that is there, or a block device";
  } else if (disk.is_memory) {
    row.finding =
        fmt::format("read: {} lies on {}, which is memory itself", disk.looked_at, disk.file_system);
    row.remedy = "name a directory of an ext4 or an XFS, or a block device";
  } else if (!disk.content.empty()) {
    row.finding = fmt::format("read: {} carries {}", disk.path, disk.content);
    row.remedy = "name another device, or a file on its file system; spill_force=on overwrites it";
  } else {
    row.state = State::kPresent;
    row.finding = disk.is_device
                      ? fmt::format("read: {} is a block device without content of others", disk.path)
                      : fmt::format("read: {} lies on {}", disk.looked_at, disk.file_system);
  }
  return row;
}

SystemRow judge_direct(const DiskPlace& disk) {
  SystemRow row{.what = "direct I/O (O_DIRECT)",
                .finding = "not tried, because the file system makes no nameless files",
                .cost = "a pool with this disk tier is refused",
                .remedy = "name a directory of an ext4 or an XFS, or a block device with blocks of 4 KiB",
                .needed = true};
  if (disk.direct.worked()) {
    row.state = State::kPresent;
    row.finding =
        fmt::format("tried: a block of {} was {}", format_size(disk.block_bytes),
                    disk.is_device || disk.is_file ? "read" : "written to a nameless file and read");
  } else if (disk.direct.failed()) {
    row.state = State::kAbsent;
    row.finding = "tried: " + sys::error_text(disk.direct.code());
    if (disk.block_bytes > 4096)
      row.finding = fmt::format("tried: it moves blocks of {} only", format_size(disk.block_bytes));
  }
  return row;
}

SystemRow judge_space(const DiskPlace& disk) {
  SystemRow row{
      .what = "free space",
      .state = disk.free_bytes > 0 ? State::kPresent : State::kAbsent,
      .finding = fmt::format("read: {} of {}", format_size(disk.free_bytes), format_size(disk.total_bytes)),
      .cost = "the tier's file cannot be made",
      .remedy = "remove something, or name another disk",
      .needed = true};
  if (disk.is_device)
    row.finding =
        fmt::format("read: a device of {}, all of which the tier takes", format_size(disk.total_bytes));
  return row;
}

}  // namespace

std::vector<SystemRow> judge_disk(const SystemFacts& facts) {
  std::vector<SystemRow> rows{judge_uring(facts)};
  if (!facts.disk) return rows;
  rows.push_back(judge_place(*facts.disk));
  if (!facts.disk->found.worked()) return rows;
  rows.push_back(judge_direct(*facts.disk));
  rows.push_back(judge_space(*facts.disk));
  return rows;
}

}  // namespace kvcachefs
