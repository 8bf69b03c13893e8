#include "daemon/mount_helper/mount_helper.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/mount_helper/scope.h"
#include "tests/unit/daemon/fake_mount.h"

namespace kvcachefs::mount_helper_test {

constexpr uint64_t kMemory = uint64_t{64} << 30;

Result<MountArguments> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "mount.kvcachefs");
  return parse_mount_arguments(static_cast<int>(arguments.size()), arguments.data(), kMemory);
}

TEST(MountArguments, HasDefaults) {
  Result<MountArguments> arguments = parse({"llama", "/usr"});
  ASSERT_TRUE(arguments) << arguments.error().message;
  EXPECT_EQ(arguments->pool, "llama");
  EXPECT_EQ(arguments->directory, "/usr");
  EXPECT_EQ(arguments->base, "/run/kvcachefs/mount");
  EXPECT_FALSE(arguments->fake || arguments->verbose || arguments->read_only || arguments->no_exec);
  EXPECT_EQ(daemon_command(*arguments),
            (std::vector<std::string>{"kvcachefsd", "--daemonize", "--pool", "llama", "-o",
                                      "runtime_dir=/run/kvcachefs", "/run/kvcachefs/mount"}));
}

TEST(MountArguments, TakesWhatMountPassesOn) {
  Result<MountArguments> arguments = parse(
      {"llama", "/usr/", "-vn", "-o", "rw,ro,noexec,size=16G,_netdev,policy=lfu,x-systemd.automount,io_uring",
       "-o", "poll_us=5,runtime_dir=/run/x,,config=/etc/kv.toml", "-t", "kvcachefs", "-N", "/proc/1/ns/mnt"});
  ASSERT_TRUE(arguments) << arguments.error().message;
  EXPECT_EQ(arguments->directory, "/usr");
  EXPECT_EQ(arguments->base, "/run/x/mount");
  EXPECT_TRUE(arguments->verbose);
  EXPECT_TRUE(arguments->read_only);
  EXPECT_TRUE(arguments->no_exec);
  EXPECT_EQ(pool_spec(*arguments), "llama:size=16G,policy=lfu");
  EXPECT_EQ(daemon_command(*arguments),
            (std::vector<std::string>{"kvcachefsd", "--daemonize", "--config", "/etc/kv.toml", "--pool",
                                      "llama:size=16G,policy=lfu", "-o",
                                      "runtime_dir=/run/x,io_uring,poll_us=5", "/run/x/mount"}));
  EXPECT_EQ(parse({"a", "/usr", "-o", "runtime_dir=/run/x,mountpoint=/mnt//kv"})->base, "/mnt/kv");
  EXPECT_TRUE(parse({"-f", "a", "/usr"})->fake);
  EXPECT_TRUE(parse({"a", "/usr"})->seals);
  EXPECT_FALSE(parse({"a", "/usr", "-o", "seal=off"})->seals);
  // As mount(8) has them from the mount table.
  arguments = parse({"kvcachefs", "/usr", "-o", "ro,nosuid,user_id=0,noexec,remount,rw,exec"});
  ASSERT_TRUE(arguments) << arguments.error().message;
  EXPECT_TRUE(arguments->remount);
  EXPECT_FALSE(arguments->read_only || arguments->no_exec);
  EXPECT_TRUE(parse({"a", "/usr", "-s", "-o", "colour=red"}));
  EXPECT_TRUE(parse({"-nvoro", "a", "-o", "noexec", "/usr"})->no_exec);
  EXPECT_TRUE(parse({"-nvoro", "a", "-o", "noexec", "/usr"})->read_only);
  EXPECT_EQ(parse({"-oro", "--", "a", "/usr"})->pool, "a");
}

// The options that mount(8) lists as FILESYSTEM-INDEPENDENT MOUNT OPTIONS, except those of SELinux.
TEST(MountArguments, TakesTheOptionsOfAllFileSystems) {
  for (const char* option : {"async",
                             "atime",
                             "noatime",
                             "auto",
                             "noauto",
                             "defaults",
                             "dev",
                             "nodev",
                             "diratime",
                             "nodiratime",
                             "dirsync",
                             "exec",
                             "noexec",
                             "group",
                             "nogroup",
                             "iversion",
                             "noiversion",
                             "mand",
                             "nomand",
                             "_netdev",
                             "nofail",
                             "relatime",
                             "norelatime",
                             "strictatime",
                             "lazytime",
                             "nolazytime",
                             "suid",
                             "nosuid",
                             "silent",
                             "loud",
                             "owner",
                             "noowner",
                             "ro",
                             "rw",
                             "sync",
                             "user",
                             "nouser",
                             "users",
                             "nousers",
                             "X-mount.mkdir",
                             "x-initrd.mount",
                             "nosymfollow",
                             "symfollow",
                             "nostrictatime",
                             "user=somebody",
                             "comment=any"}) {
    const Result<MountArguments> arguments = parse({"a", "/usr", "-o", option});
    ASSERT_TRUE(arguments) << option;
    EXPECT_EQ(daemon_command(*arguments), daemon_command(*parse({"a", "/usr"}))) << option;
  }
  EXPECT_TRUE(parse({"a", "/usr", "-o", "nosymfollow"})->no_symbolic_links);
}

TEST(MountArguments, NameTheDisksThatTheScopeNeeds) {
  const auto of_disks = [](const char* options) {
    std::vector<std::string> found = scope_words(*parse({"a", "/usr", "-o", options}));
    std::erase_if(found, [](const std::string& word) { return !word.starts_with("--property=Requires"); });
    return found;
  };
  EXPECT_EQ(of_disks(R"(size=1G,spill=/data/a b,spill_size=1G,catalog=/fast/"a" \ b)"),
            (std::vector<std::string>{R"(--property=RequiresMountsFor="/data/a b")",
                                      R"(--property=RequiresMountsFor="/fast/\"a\" \\ b")"}));
  EXPECT_TRUE(of_disks("size=1G,spill=none").empty());
}

TEST(MountArguments, BindTheDisksToTheDaemonThatServes) {
  const MountArguments arguments = *parse({"a", "/usr", "-o", "size=1G,spill=/data/a b,spill_size=1G"});
  const auto has = [&](const std::string& daemon_unit, const std::string& word) {
    const auto words = disk_unit_command(arguments, daemon_unit, "disks.service");
    return std::ranges::find(words, word) != words.end();
  };
  for (const char* word : {R"(--property=RequiresMountsFor="/data/a b")", "--property=Before=kv.scope",
                           "--property=PropagatesStopTo=kv.scope", "--property=BindsTo=kv.scope"})
    EXPECT_TRUE(has("kv.scope", word)) << word;
  EXPECT_TRUE(has("kv.service", "--property=PartOf=kv.service"));
  EXPECT_FALSE(has("kv.service", "--property=BindsTo=kv.service")) << "a service may come back";
  EXPECT_TRUE(disk_unit_command(*parse({"a", "/usr", "-o", "size=1G"}), "kv.scope", "d.service").empty());
}

TEST(MountArguments, NamesTheBaseAsTheMountTableDoes) {
  test::FakeMount directory;
  std::filesystem::create_directory_symlink(directory.root(), directory.root() / "link");
  const std::string options = "runtime_dir=" + (directory.root() / "link").native() + "/new";
  EXPECT_EQ(parse({"a", "/usr", "-o", options.c_str()})->base,
            std::filesystem::canonical(directory.root()) / "new/mount");
}

TEST(MountArguments, NamesMistakes) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{}, "usage"},
      {{"a"}, "usage"},
      {{"a", "/usr", "b"}, "usage"},
      {{"a", "/usr", "-x"}, "-x: unknown option"},
      {{"a", "/usr", "-vx"}, "-x: unknown option"},
      {{"a", "/usr", "--verbose"}, "--: unknown option"},
      {{"a", "/usr", "-"}, "usage"},
      {{"a", "/usr", "-o"}, "-o: needs a value"},
      {{"a", "/usr", "-vN"}, "-N: needs a value"},
      {{".a", "/usr"}, "'.a' is not a pool name"},
      {{"a", "/usr", "-o", "colour=red"}, "colour=red: unknown option"},
      {{"a", "/"}, "/: kvcachefs is not mounted over the root directory"},
      {{"a", "/proc/self/fd"}, "kvcachefs is not mounted in /proc"},
      {{"a", "/usr", "-o", "mountpoint=/dev/kv"}, "/dev/kv: kvcachefs is not mounted in /proc, /sys or /dev"},
      {{"a", "/usr", "-o", "poll_us=x"}, "-o poll_us: 'x' is not a number"},
      {{"a", "/usr", "-o", "no_supervisor=1"}, "-o no_supervisor: takes no value"},
      {{"a", "/usr", "-o", "seal=true"}, "-o seal: 'true' is not on or off"},
      {{"a", "/usr", "-o", "size=x"}, "size: 'x'"},
      {{"a", "/usr", "-o", "size"}, "size: ''"},
      {{"a", "/usr", "-o", "mountpoint=kv"}, "mountpoint: 'kv' is not an absolute path"},
      {{"a", "/usr", "-o", "spill=kv.spill"}, "spill: 'kv.spill' is not an absolute path"},
      {{"a", "/nowhere/at/all"}, "/nowhere/at/all: No such file"},
  };
  for (const auto& [arguments, reason] : cases) {
    Result<MountArguments> result = parse(arguments);
    ASSERT_FALSE(result) << reason;
    EXPECT_NE(result.error().message.find(reason), std::string::npos) << result.error().message;
  }
}

TEST(MountHelper, TellsWhatDiffers) {
  test::FakeMount mount;
  mount.add_pool("a");
  ASSERT_EQ(::chmod((mount.root() / "a").c_str(), 0750), 0);
  const std::string owner = std::to_string(::getuid());
  const auto differences = [&](const std::string& options) {
    Result<MountArguments> arguments = parse({"a", "/usr", "-o", options.c_str()});
    return differing_settings(MountTree(mount.root()), *arguments, kMemory);
  };
  EXPECT_TRUE(differences("").empty());
  EXPECT_TRUE(
      differences("size=16G,policy=lru,watermarks=95:98,entry_size=auto,pinned_max=50,mode=750").empty());
  EXPECT_TRUE(differences("size=25%").empty());
  EXPECT_TRUE(differences("uid=" + owner).empty());
  mount.write("a/.pool/spill", "/data/s 8G\n");
  mount.write("a/.pool/durability", "sync\n");
  EXPECT_TRUE(differences("spill=/data/s,spill_size=8G,spill_unit=64K,durability=sync,prefetch=on").empty());
  EXPECT_EQ(differences("spill=/data/t,spill_size=9G,admission=tinylfu"),
            (std::vector<std::string>{"spill is /data/s, not /data/t", "spill_size is 8G, not 9G",
                                      "admission is all, not tinylfu"}));
  EXPECT_EQ(differences("size=8G,policy=lru,entry_size=2M,mode=1777"),
            (std::vector<std::string>{"size is 16G, not 8G", "entry_size is auto, not 2M",
                                      "mode is 0750, not 1777"}));
}

TEST(MountHelper, KnowsItsOwnMount) {
  MountArguments arguments = *parse({"a", "/usr"});
  arguments.base = "/base";
  arguments.directory = "/mnt/a";
  const std::string base = "1 0 0:45 / /base rw - fuse.kvcachefs kvcachefs rw\n";
  const auto bound = [&](const std::string& table) { return is_bound(test::mounts_in(table), arguments); };
  EXPECT_FALSE(bound(""));
  EXPECT_FALSE(bound(base));
  EXPECT_TRUE(bound(base + "2 0 0:45 /a /mnt/a rw - fuse.kvcachefs kvcachefs rw\n"));
  EXPECT_FALSE(bound(base + "2 0 0:45 /b /mnt/a rw - fuse.kvcachefs kvcachefs rw\n"));
  EXPECT_FALSE(bound(base + "2 0 0:44 /a /mnt/a rw - fuse.kvcachefs kvcachefs rw\n"));
  EXPECT_FALSE(bound(base + "2 0 0:45 /a /mnt/a rw - fuse.kvcachefs kvcachefs rw\n"
                            "3 0 0:50 / /mnt/a rw - tmpfs tmpfs rw\n"));
}

}  // namespace kvcachefs::mount_helper_test
