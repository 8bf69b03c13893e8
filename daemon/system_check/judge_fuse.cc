// judge_fuse(): what the kernel's FUSE gives.
#include <fmt/format.h>

#include <cerrno>

#include "base/sys_disk.h"
#include "daemon/system_check/judge.h"

namespace kvcachefs {
namespace {

using State = SystemRow::State;

// And the packages that have it where the distribution's own kernel is older.
constexpr const char* kKernels69 =
    "Linux 6.9 or later, for example Debian 13's; on Debian 12 linux-image-amd64 of bookworm-backports, on "
    "Ubuntu 24.04 "
    "linux-generic-hwe-24.04";

SystemRow judge_connection(const SystemFacts& facts) {
  const KernelOffer& fuse = facts.trials.fuse;
  SystemRow row{.what = "FUSE", .cost = "nothing can be mounted", .needed = true};
  const auto absent = [&row](std::string finding, std::string remedy) {
    row.state = State::kAbsent;
    row.finding = std::move(finding);
    row.remedy = std::move(remedy);
  };
  if (fuse.init.worked()) {
    row.state = State::kPresent;
    row.finding = fmt::format("tried: /dev/fuse opens, mounts and answers, protocol 7.{}", fuse.minor);
  } else if (fuse.device.failed()) {
    absent("tried: /dev/fuse cannot be opened: " + sys::error_text(fuse.device.code()),
           "modprobe fuse (CONFIG_FUSE_FS); in a container, docker run --device /dev/fuse");
  } else if (fuse.mount.failed()) {
    absent("tried: FUSE cannot be mounted: " + sys::error_text(fuse.mount.code()),
           "CAP_SYS_ADMIN; in a container also a seccomp and an AppArmor profile that allow mount(2)");
  } else if (fuse.init.failed()) {
    absent("tried: the kernel does not begin the connection: " + sys::error_text(fuse.init.code()),
           "Linux 6.1 or later");
  } else {
    row.finding = not_tried(facts, "");
    row.remedy = "run this as root of the host";
  }
  return row;
}

// A row of what only a connection tells.
SystemRow fuse_row(const SystemFacts& facts, std::string what, std::string_view since, bool present,
                   std::string finding) {
  if (!facts.trials.fuse.init.worked())
    return {.what = std::move(what),
            .finding = not_tried(facts, since),
            .remedy = "run this as root of the host"};
  return {.what = std::move(what),
          .state = present ? State::kPresent : State::kAbsent,
          .finding = std::move(finding)};
}

// A row of what the kernel offers by a flag.
SystemRow offer_row(const SystemFacts& facts, std::string what, std::string_view since, bool offered) {
  return fuse_row(facts, std::move(what), since, offered,
                  offered ? "tried: the kernel offers it" : "tried: the kernel does not offer it");
}

SystemRow judge_passthrough(const SystemFacts& facts) {
  const KernelOffer& fuse = facts.trials.fuse;
  std::string finding = "tried: the kernel took a file of a tmpfs";
  std::string remedy = std::string(kKernels69) + " (CONFIG_FUSE_PASSTHROUGH)";
  if (!fuse.has_passthrough) {
    finding = "tried: the kernel does not offer it";
  } else if (fuse.backing.failed()) {
    finding = "tried: the kernel offers it and takes no file: " + sys::error_text(fuse.backing.code());
    if (fuse.backing.code() == EPERM) remedy = "CAP_SYS_ADMIN in the host's own user namespace";
  }
  SystemRow row = fuse_row(facts, "passthrough", "6.9", fuse.backing.worked(), std::move(finding));
  row.cost =
      "the daemon moves all bytes: on 2 cores 0.7 to 0.9 of a plain tmpfs' speed for stores and reads of "
      "whole "
      "entries, a third for mappings and small reads";
  if (row.remedy.empty()) row.remedy = std::move(remedy);
  return row;
}

SystemRow judge_resend(const SystemFacts& facts) {
  const KernelOffer& fuse = facts.trials.fuse;
  const bool present = fuse.resends && fuse.resend.worked();
  SystemRow row = fuse_row(facts, "takeover (resend)", "6.9", present,
                           present ? "tried: the kernel sends again what was not answered"
                                   : "tried: the kernel sends no request again");
  row.cost =
      "when the serving process dies the mount ends with it: clients get ENOTCONN, what is in memory is "
      "lost, and "
      "there is no upgrade in place";
  if (row.remedy.empty()) row.remedy = kKernels69;
  return row;
}

SystemRow judge_epoch(const SystemFacts& facts) {
  const bool present = facts.trials.fuse.epoch.worked();
  SystemRow row = fuse_row(facts, "new epoch", "6.16", present,
                           present ? "tried: the kernel doubts all names when told to"
                                   : "tried: the kernel does not know the message");
  row.cost =
      "after a takeover a name that the dead process removed, and did not tell of, is looked up again only "
      "when "
      "its use fails";
  if (row.remedy.empty())
    row.remedy = "Linux 6.16 or later: Ubuntu 24.04 with linux-generic-hwe-24.04 (6.17)";
  return row;
}

SystemRow judge_direct_maps(const SystemFacts& facts) {
  SystemRow row = offer_row(facts, "maps past page cache", "6.6", facts.trials.fuse.maps_direct);
  row.cost =
      "none with passthrough; without it what is read or mapped is in the page cache, too, which the kernel "
      "takes "
      "back as it needs memory, and large listings may miss a name while others are removed";
  if (row.remedy.empty()) row.remedy = "Linux 6.6 or later";
  return row;
}

SystemRow judge_mapped_ids(const SystemFacts& facts) {
  SystemRow row = offer_row(facts, "mounts with mapped ids", "6.12", facts.trials.fuse.maps_ids);
  row.cost =
      "containers with a user namespace of their own cannot get a pool by a mount with mapped ids: EINVAL";
  if (row.remedy.empty())
    row.remedy = "Linux 6.12 or later, for example Debian 13's, or that of bookworm-backports";
  return row;
}

SystemRow judge_over_uring(const SystemFacts& facts) {
  const bool switched_on = facts.fuse_over_uring.value_or(false);
  const bool has_switch = facts.fuse_over_uring.has_value();
  std::string finding = "tried: the kernel offers it";
  std::string remedy =
      "Linux 6.14 or later with CONFIG_FUSE_IO_URING: Ubuntu 24.04 with linux-generic-hwe-24.04";
  if (!has_switch) {
    finding = "read: there is no /sys/module/fuse/parameters/enable_uring";
  } else if (!switched_on) {
    finding = "read: the kernel has it, switched off (enable_uring is N)";
    remedy =
        "echo Y > /sys/module/fuse/parameters/enable_uring, or fuse.enable_uring=1 on the kernel's command "
        "line; "
        "then -o io_uring";
  } else if (!facts.trials.fuse.over_uring) {
    finding = "tried: the kernel does not offer it, although it is switched on";
  }
  SystemRow row{
      .what = "FUSE over io_uring",
      .state = State::kAbsent,
      .finding = std::move(finding),
      .cost =
          "an open takes a round trip by /dev/fuse, on 2 cores 36 us and not 14; nothing else. The mode "
          "has neither takeover nor disk tier",
      .remedy = std::move(remedy)};
  if (switched_on && facts.trials.fuse.over_uring) row.state = State::kPresent;
  if (!has_switch || !switched_on || facts.trials.fuse.init.worked()) return row;
  row.state = State::kUnknown;
  row.finding = not_tried(facts, "6.14");
  row.remedy = "run this as root of the host";
  return row;
}

}  // namespace

std::vector<SystemRow> judge_fuse(const SystemFacts& facts) {
  return {judge_connection(facts),  judge_passthrough(facts), judge_resend(facts),    judge_epoch(facts),
          judge_direct_maps(facts), judge_mapped_ids(facts),  judge_over_uring(facts)};
}

}  // namespace kvcachefs
