// What is made of the facts about a machine, and the table of it. What is found on this machine is
// tests/mount/system_check_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <string>

#include "daemon/system_check/table.h"

namespace kvcachefs::system_check_test {

using ::testing::HasSubstr;
using ::testing::Not;
using State = SystemRow::State;
constexpr uint64_t kG = uint64_t{1} << 30;

// A machine that has all, and a disk.
SystemFacts all() {
  const Trial well = Trial::worked_well();
  SystemFacts facts;
  facts.release = "6.18.1";
  facts.is_root = true;
  MountTrials& trials = facts.trials;
  trials.own_mounts = trials.tmpfs = trials.handles = trials.lease = well;
  trials.huge_page = trials.huge_page_ahead = well;
  trials.huge_option = trials.noswap_option = true;
  KernelOffer& fuse = trials.fuse;
  fuse.device = fuse.mount = fuse.init = fuse.backing = fuse.resend = fuse.epoch = well;
  fuse.minor = 45;
  fuse.resends = fuse.maps_direct = fuse.maps_ids = fuse.over_uring = fuse.has_passthrough = true;
  facts.fuse_over_uring = true;
  facts.uring_disabled = "0";
  facts.shmem_enabled = "never";
  facts.machine_bytes = facts.usable_bytes = 64 * kG;
  facts.available_bytes = 60 * kG;
  facts.reserve_bytes = 3 * kG;
  DiskPlace disk;
  disk.path = "/data/llama.spill";
  disk.looked_at = "/data";
  disk.found = disk.direct = well;
  disk.file_system = "ext4";
  disk.block_bytes = 4096;
  disk.total_bytes = 200 * kG;
  disk.free_bytes = 100 * kG;
  facts.disk = disk;
  return facts;
}

// The same where nothing could be mounted.
SystemFacts untried() {
  SystemFacts facts = all();
  facts.trials = {};
  facts.trials.own_mounts = Trial::failed_with(EPERM);
  facts.is_root = false;
  facts.missing_rights = {"CAP_SYS_ADMIN", "CAP_LEASE"};
  return facts;
}

SystemRow row(const SystemFacts& facts, const std::string& what) {
  for (const SystemRow& each : judge_system(facts))
    if (each.what == what) return each;
  ADD_FAILURE() << "no row " << what;
  return {};
}

TEST(SystemCheckTest, AMachineThatHasAllHasNoAbsentRow) {
  const auto rows = judge_system(all());
  EXPECT_EQ(rows.size(), 18u);
  for (const SystemRow& each : rows) {
    EXPECT_EQ(each.state, State::kPresent) << each.what;
    EXPECT_FALSE(each.finding.empty()) << each.what;
  }
  EXPECT_TRUE(can_serve(rows));
}

struct Lack {
  const char* what;
  std::function<void(SystemFacts&)> lose;
  const char* finding;
  const char* remedy;
  bool serves = true;  // all the same
};

Trial no(int code) {
  return Trial::failed_with(code);
}

KernelOffer without_device() {
  KernelOffer offer;
  offer.device = no(ENOENT);
  return offer;
}

const Lack kLacks[] = {
    {"rights", [](SystemFacts& f) { f.is_root = false; }, "not root", "as root", false},
    {"rights", [](SystemFacts& f) { f.missing_rights = {"CAP_LEASE"}; }, "root, but without CAP_LEASE",
     "--cap-add", false},
    {"FUSE", [](SystemFacts& f) { f.trials.fuse = without_device(); }, "/dev/fuse cannot be opened: No such",
     "modprobe fuse", false},
    {"FUSE", [](SystemFacts& f) { f.trials.fuse.init = f.trials.fuse.mount = no(EPERM); },
     "cannot be mounted: Operation not", "seccomp", false},
    {"FUSE", [](SystemFacts& f) { f.trials.fuse.init = no(EPROTO); }, "does not begin", "Linux 6.1", false},
    {"passthrough",
     [](SystemFacts& f) {
       f.trials.fuse.has_passthrough = false;
       f.trials.fuse.backing = {};
     },
     "does not offer it", "bookworm-backports"},
    {"passthrough", [](SystemFacts& f) { f.trials.fuse.backing = no(EPERM); },
     "takes no file: Operation not permitted", "CAP_SYS_ADMIN in the host's own user namespace"},
    {"takeover (resend)", [](SystemFacts& f) { f.trials.fuse.resends = false; }, "sends no request again",
     "Linux 6.9"},
    {"takeover (resend)", [](SystemFacts& f) { f.trials.fuse.resend = no(EINVAL); }, "sends no request again",
     "Linux 6.9"},
    {"new epoch", [](SystemFacts& f) { f.trials.fuse.epoch = no(EINVAL); }, "does not know", "Linux 6.16"},
    {"maps past page cache", [](SystemFacts& f) { f.trials.fuse.maps_direct = false; }, "does not offer it",
     "Linux 6.6"},
    {"mounts with mapped ids", [](SystemFacts& f) { f.trials.fuse.maps_ids = false; }, "does not offer it",
     "Linux 6.12"},
    {"FUSE over io_uring", [](SystemFacts& f) { f.fuse_over_uring.reset(); }, "there is no /sys",
     "Linux 6.14"},
    {"FUSE over io_uring",
     [](SystemFacts& f) {
       f.fuse_over_uring = false;
       f.trials.fuse.over_uring = false;
     },
     "switched off", "echo Y > /sys"},
    {"FUSE over io_uring", [](SystemFacts& f) { f.trials.fuse.over_uring = false; }, "although it is",
     "Linux 6.14"},
    {"file handles on tmpfs", [](SystemFacts& f) { f.trials.handles = no(EPERM); }, "Operation not permitted",
     "CAP_DAC_READ_SEARCH", false},
    {"file leases on tmpfs", [](SystemFacts& f) { f.trials.lease = no(EINVAL); }, "Invalid argument",
     "fs.leases-enable=1", false},
    {"huge pages on tmpfs",
     [](SystemFacts& f) {
       f.trials.huge_option = false;
       f.trials.huge_page = {};
     },
     "refuses a tmpfs with huge", "CONFIG_TRANSPARENT_HUGEPAGE"},
    {"huge pages on tmpfs",
     [](SystemFacts& f) {
       f.trials.huge_page = no(ENOMEM);
       f.shmem_enabled = "deny";
     },
     "shmem_enabled is deny", "echo never"},
    {"tmpfs without swap", [](SystemFacts& f) { f.trials.noswap_option = false; },
     "refuses a tmpfs with noswap", "Linux 6.4"},
    {"NUMA nodes",
     [](SystemFacts& f) {
       f.numa_nodes = 2;
       f.trials.placing = no(EPERM);
     },
     "Operation not permitted", "SYS_NICE"},
    {"memory", [](SystemFacts& f) { f.available_bytes = kG; }, "1G available now", "memory_reserve"},
    {"io_uring for the disk", [](SystemFacts& f) { f.disk_uring = fail(ENOSYS, "a filter hides it"); },
     "a filter hides it", "CONFIG_IO_URING", false},
    {"io_uring for the disk",
     [](SystemFacts& f) {
       f.disk_uring = fail(EPERM, "no");
       f.uring_disabled = "2";
       f.disk.reset();
     },
     "kernel.io_uring_disabled is 2", "sysctl kernel.io_uring_disabled=0"},
    {"io_uring for the disk", [](SystemFacts& f) { f.disk_uring = fail(ENOMEM, "no memory"); }, "no memory",
     "ulimit -l", false},
    {"place of the disk tier", [](SystemFacts& f) { f.disk->found = no(ENOENT); }, "/data: No such file",
     "make the directory", false},
    {"place of the disk tier",
     [](SystemFacts& f) {
       f.disk->is_memory = true;
       f.disk->file_system = "tmpfs";
     },
     "/data lies on tmpfs, which is memory", "ext4", false},
    {"place of the disk tier",
     [](SystemFacts& f) {
       f.disk->is_device = true;
       f.disk->content = "a file system (ext4)";
     },
     "carries a file system (ext4)", "spill_force=on", false},
    {"direct I/O (O_DIRECT)", [](SystemFacts& f) { f.disk->direct = no(EINVAL); }, "Invalid argument", "ext4",
     false},
    {"direct I/O (O_DIRECT)",
     [](SystemFacts& f) {
       f.disk->direct = no(EINVAL);
       f.disk->block_bytes = 65536;
     },
     "blocks of 64K only", "ext4", false},
    {"free space", [](SystemFacts& f) { f.disk->free_bytes = 0; }, "0 of 200G", "another disk", false},
};

TEST(SystemCheckTest, SaysOfEachLackWhatItCostsAndHowToEndIt) {
  for (const Lack& lack : kLacks) {
    SCOPED_TRACE(std::string(lack.what) + ", " + lack.finding);
    SystemFacts facts = all();
    lack.lose(facts);
    const SystemRow found = row(facts, lack.what);
    EXPECT_EQ(found.state, State::kAbsent);
    EXPECT_THAT(found.finding, HasSubstr(lack.finding));
    EXPECT_THAT(found.remedy, HasSubstr(lack.remedy));
    EXPECT_FALSE(found.cost.empty());
    EXPECT_EQ(can_serve(judge_system(facts)), lack.serves);
  }
}

TEST(SystemCheckTest, WhatWasNotTriedIsUnknownAndTheVersionProvesNothing) {
  const SystemFacts facts = untried();
  for (const char* what : {"FUSE", "passthrough", "takeover (resend)", "new epoch", "maps past page cache",
                           "mounts with mapped ids", "FUSE over io_uring", "file handles on tmpfs",
                           "file leases on tmpfs", "huge pages on tmpfs", "tmpfs without swap"}) {
    const SystemRow found = row(facts, what);
    EXPECT_EQ(found.state, State::kUnknown) << what;
    EXPECT_THAT(found.finding, HasSubstr("not tried, because a mount namespace of its own is not to be had: "
                                         "Operation not permitted"));
    EXPECT_THAT(found.remedy, HasSubstr("root")) << what;
    EXPECT_FALSE(found.cost.empty()) << what;
  }
  EXPECT_THAT(row(facts, "passthrough").finding, HasSubstr("Linux has it from 6.9 on, this is 6.18.1"));
  EXPECT_EQ(row(facts, "rights").finding, "read: not root, and without CAP_SYS_ADMIN, CAP_LEASE");
  EXPECT_EQ(row(facts, "io_uring for the disk").state, State::kPresent) << "tried without mounts";
  EXPECT_FALSE(can_serve(judge_system(facts)));
}

TEST(SystemCheckTest, RootOfAUserNamespaceIsToldSo) {
  SystemFacts facts = all();
  facts.has_hosts_users = false;
  facts.trials.noswap_option = false;
  EXPECT_THAT(row(facts, "rights").finding, HasSubstr("of a user namespace that is not the host's"));
  EXPECT_THAT(row(facts, "tmpfs without swap").remedy, HasSubstr("the host's own user namespace"));
}

TEST(SystemCheckTest, SaysWhyNothingOfFuseWasTried) {
  SystemFacts facts = all();
  facts.trials.fuse = without_device();
  EXPECT_THAT(row(facts, "passthrough").finding, HasSubstr("because /dev/fuse cannot be opened"));
  facts.trials.fuse.device = Trial::worked_well();
  facts.trials.fuse.mount = no(EPERM);
  EXPECT_THAT(row(facts, "passthrough").finding, HasSubstr("because FUSE could not be mounted"));
  EXPECT_EQ(row(facts, "file handles on tmpfs").state, State::kPresent);
  facts.trials = {};
  facts.trials.own_mounts = Trial::worked_well();
  facts.trials.tmpfs = no(EPERM);
  EXPECT_THAT(row(facts, "FUSE").finding, HasSubstr("because no tmpfs could be mounted"));
}

TEST(SystemCheckTest, HugePagesMayComeToWhatIsNotAllocatedAhead) {
  SystemFacts facts = all();
  facts.trials.huge_page_ahead = no(ENOMEM);
  EXPECT_EQ(row(facts, "huge pages on tmpfs").state, State::kAbsent);
  EXPECT_THAT(row(facts, "huge pages on tmpfs").finding, HasSubstr("not for what is allocated ahead"));
}

TEST(SystemCheckTest, HugePagesThatDidNotComeMayComeLater) {
  SystemFacts facts = all();
  facts.trials.huge_page = no(ENOMEM);
  EXPECT_EQ(row(facts, "huge pages on tmpfs").state, State::kUnknown);
  EXPECT_THAT(row(facts, "huge pages on tmpfs").remedy, HasSubstr("compact_memory"));
}

TEST(SystemCheckTest, SaysHowMuchMemoryPoolsMayHave) {
  SystemFacts facts = all();
  EXPECT_EQ(row(facts, "memory").finding,
            "read: 64G; 61G for all pools, and a reserve of 3G; 60G available now");
  facts.usable_bytes = 8 * kG;
  facts.available_bytes = 4 * kG;
  EXPECT_EQ(row(facts, "memory").finding,
            "read: 64G, a cgroup's limit of 8G; 5G for all pools, and a reserve of 3G; 4G available now");
  facts.usable_bytes = 0;
  EXPECT_EQ(row(facts, "memory").state, State::kUnknown);
  EXPECT_TRUE(can_serve(judge_system(facts)));
}

TEST(SystemCheckTest, SaysOnHowManyNodesFilesArePlaced) {
  SystemFacts facts = all();
  EXPECT_THAT(row(facts, "NUMA nodes").finding, HasSubstr("one node"));
  facts.numa_nodes = 2;
  facts.trials.placing = Trial::worked_well();
  EXPECT_EQ(row(facts, "NUMA nodes").finding, "tried: 2 nodes, and a file was placed on one");
  facts.trials.placing = {};
  EXPECT_EQ(row(facts, "NUMA nodes").state, State::kUnknown);
}

TEST(SystemCheckTest, LooksAtADiskOnlyIfOneIsNamed) {
  SystemFacts facts = all();
  EXPECT_EQ(row(facts, "free space").finding, "read: 100G of 200G");
  EXPECT_EQ(row(facts, "place of the disk tier").finding, "read: /data lies on ext4");
  facts.disk->is_device = true;
  EXPECT_THAT(row(facts, "free space").finding, HasSubstr("a device of 200G"));
  EXPECT_THAT(row(facts, "direct I/O (O_DIRECT)").finding, HasSubstr("a block of 4K was read"));
  facts.disk->is_device = false;
  facts.disk->direct = {};
  EXPECT_EQ(row(facts, "direct I/O (O_DIRECT)").state, State::kUnknown);
  EXPECT_FALSE(can_serve(judge_system(facts)));
  facts.disk.reset();
  EXPECT_EQ(judge_system(facts).size(), 15u);
  facts.disk_uring = fail(ENOSYS, "none");
  EXPECT_TRUE(can_serve(judge_system(facts))) << "a pool without a disk tier does without";
}

TEST(SystemCheckTest, ATableIsAlignedAndNotTooWide) {
  EXPECT_EQ(
      format_system(
          {{.what = "FUSE", .state = State::kPresent, .finding = "tried", .needed = true},
           {.what = "passthrough",
            .state = State::kAbsent,
            .finding = "tried: a b",
            .cost = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen",
            .remedy = "buy it"},
           {.what = "odd", .state = State::kUnknown, .finding = "not tried"}},
          "6.1.2"),
      "kvcachefs " KVCACHEFS_VERSION
      " on Linux 6.1.2\n\n"
      "FUSE                    present  tried\n"
      "passthrough             absent   tried: a b\n"
      "                                 costs:  one two three four five six seven eight nine ten eleven\n"
      "                                         twelve thirteen fourteen\n"
      "                                 remedy: buy it\n"
      "odd                     unknown  not tried\n"
      "\nkvcachefs can serve here, without: passthrough, odd.\n");
}

TEST(SystemCheckTest, TheLastLineSaysWhatFollows) {
  EXPECT_THAT(format_system(judge_system(all()), "6.18.1"),
              HasSubstr("\n\nkvcachefs can serve here, with all"));
  const std::string text = format_system(judge_system(untried()), "6.18.1");
  EXPECT_THAT(text, HasSubstr("\n\nkvcachefs cannot serve like this. It needs: rights, FUSE, file "));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 100u);
    EXPECT_TRUE(end == begin || text[end - 1] != ' ');
  }
}

}  // namespace kvcachefs::system_check_test
