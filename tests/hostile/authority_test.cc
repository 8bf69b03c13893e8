// Who may do what: each line of the table in kvcachefsd(8), tried as each attacker who is not trusted.
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/attacker.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr uid_t kOwner = 1234;
constexpr uid_t kOther = 4321;
const std::string kPrecious = "/tmp/kv-precious-" + std::to_string(::getpid());  // a file of the host's root

// `owned` belongs to kOwner, and `roots` to root: root of a container is the owner of `roots`.
class AuthorityTest : public SharedMount<AuthorityTest> {
 public:
  static MountOptions options() {
    return {.pools = {"p:size=16M", "owned:size=64M,uid=1234,gid=1234", "roots:size=64M", "spare:size=1M"}};
  }

 protected:
  void SetUp() override {
    SharedMount<AuthorityTest>::SetUp();
    if (IsSkipped()) return;
    write_file(kPrecious, "precious", 0600);
    for (const char* pool : {"owned", "roots"}) {
      write_file(mount().path(pool) + "/others", "secret", 0600);
      ASSERT_EQ(::chown((mount().path(pool) + "/others").c_str(), kOther, kOther), 0);
    }
  }
  void TearDown() override {
    if (!IsSkipped()) {
      EXPECT_TRUE(read_file(kPrecious) == "precious") << "a file of the host was written to";
      EXPECT_EQ(error_of(::access((kPrecious + ".catalog").c_str(), F_OK)), ENOENT);
      ::unlink(kPrecious.c_str());
    }
    for (const char* pool : {"owned", "roots"}) remove_content(mount().path(pool));
    SharedMount<AuthorityTest>::TearDown();
  }

  static std::string administrators(std::string_view file, std::string_view pool = "roots") {
    return mount().administrators(file, pool);
  }
  static int takes_over() {
    const pid_t before = mount().serving_pid();
    ::kill(before, SIGKILL);
    return eventually([&] { return mount().serving_pid() > 0 && mount().serving_pid() != before; }) ? 0 : 1;
  }
};

int read_error(const std::string& path) {
  std::string content;
  return load(path, &content);
}

// `place` is where the pool is bound in a container, or its directory on the host.
using Attempt = int (*)(const std::string& place);

template <size_t N>
struct Text {
  consteval Text(const char (&text)[N]) { std::copy_n(text, N, text_); }
  char text_[N];
};
// reads() reads a file below the pool; orders() writes an order to it with one write.
template <Text kFile>
int reads(const std::string& place) {
  std::string content;
  return load(place + kFile.text_, &content);
}
template <Text kFile, Text kOrder>
int orders(const std::string& place) {
  return write_once(place + kFile.text_, kOrder.text_);
}

int spills(const std::string& place) {
  return write_once(place + "/.pool/spill", kPrecious + " 1M\nspill_force=on");
}
int resizes(const std::string& place) {
  const int smaller = write_once(place + "/.pool/size", "32M");
  return smaller != 0 ? smaller : write_once(place + "/.pool/size", "64M");
}
int deletes_pool(const std::string& place) {
  return error_of(::rmdir((place + "/../spare").c_str()));
}
int opens_spill(const std::string& place) {
  return error_of(::open((place + "/../.kvcachefs/pools/roots/spill").c_str(), O_WRONLY));
}
int opens_access_log(const std::string& place) {
  const int log = ::open((place + "/../.kvcachefs/access_log").c_str(), O_RDONLY);
  return log < 0 ? errno : error_of(::close(log));
}
int takes(const std::string& place) {
  return error_of(::chown((place + "/others").c_str(), 0, 0));
}
int marks(const std::string& place) {
  return error_of(::setxattr((place + "/others").c_str(), "trusted.kvcachefs.copy", "x", 1, 0));
}
int removes(const std::string& place) {
  return error_of(::unlink((place + "/others").c_str()));
}
int opens_device(const std::string& place) {
  const std::string name = place + "/device";
  if (::mknod(name.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) return errno;
  const int error = error_of(::open(name.c_str(), O_RDWR));
  ::unlink(name.c_str());
  return error;
}

struct Line {
  const char* what;
  Attempt attempt;
  // The expected results, in this order: a user, in another's pool; the owner of a pool; uid 0 of a
  // container, in root's pool; the same with CAP_DAC_OVERRIDE and more, in another's pool; uid 0 of a user
  // namespace, in root's pool; uid 0 of a user's user namespace, in another's pool; the administrator.
  const char* user;
  const char* owner;
  const char* container;
  const char* docker;
  const char* user_namespace;
  const char* users_namespace;
  const char* administrator;
};

constexpr const char* kOk = "ok";
constexpr const char* kEACCES = "EACCES";
constexpr const char* kEPERM = "EPERM";
constexpr const char* kENOENT = "ENOENT";
constexpr const char* kNoDisk = "EOPNOTSUPP";

// clang-format off
constexpr Line kLines[] = {
    {"see counters", reads<"/.pool/stats">,
     kOk, kOk, kOk, kOk, kOk, kOk, kOk},
    {"list entries of others", reads<"/.pool/entries">,
     kEACCES, kOk, kOk, kOk, kOk, kEACCES, kOk},
    {"choose the policy", orders<"/.pool/policy", "lru">,
     kEACCES, kOk, kOk, kOk, kOk, kEACCES, kOk},
    {"size within size_max", resizes,
     kEACCES, kOk, kOk, kOk, kOk, kEACCES, kOk},
    {"size beyond size_max", orders<"/.pool/size", "128M">,
     kEACCES, kEPERM, kEPERM, kEPERM, kEPERM, kEACCES, kEPERM},
    {"raise pinned_max", orders<"/.pool/pinned_max", "51%">,
     kEACCES, kEPERM, kEPERM, kEPERM, kEPERM, kEACCES, kEPERM},
    {"size_max", orders<"/.pool/size_max", "128M">,
     kEACCES, kEACCES, kEACCES, kEACCES, kEACCES, kEACCES, kEACCES},
    {"spill to a file of the host", spills,
     kEACCES, kEPERM, kEPERM, kEPERM, kEPERM, kEACCES, kEPERM},
    {"scrub at a higher rate", orders<"/.pool/scrub", "start 10G">,
     kEACCES, kEPERM, kEPERM, kEPERM, kEPERM, kEACCES, kEPERM},
    {"scrub", orders<"/.pool/scrub", "start">,
     kEACCES, kNoDisk, kNoDisk, kNoDisk, kNoDisk, kEACCES, kNoDisk},
    {"open the administrator's files", opens_spill,
     kEACCES, kEACCES, kENOENT, kENOENT, kEPERM, kEACCES, kOk},
    {"see what happens to all entries", opens_access_log,
     kEACCES, kEACCES, kENOENT, kENOENT, kEPERM, kEACCES, kOk},
    {"delete a pool", deletes_pool,
     kEACCES, kEACCES, kENOENT, kENOENT, kEPERM, kEACCES, kOk},
    {"read an entry of another's", reads<"/others">,
     kEACCES, kEACCES, kEACCES, kOk, kEACCES, kEACCES, kOk},
    {"say what an entry of another's holds", orders<"/.pool/index", "index others agent=x\n">,
     kEACCES, kEACCES, kEACCES, kOk, kEACCES, kEACCES, kOk},
    {"take an entry of another's", takes,
     kEPERM, kEPERM, kEPERM, kOk, kEPERM, kEPERM, kOk},
    {"mark an entry as the daemon does", marks,
     kEPERM, kEPERM, kEPERM, kEPERM, kEPERM, kEPERM, kNoDisk},
    {"use a device node", opens_device,
     kEPERM, kEPERM, kEPERM, kEACCES, kEPERM, kEPERM, kEACCES},
    {"remove an entry of another's", removes,
     kEPERM, kOk, kOk, kOk, kOk, kEPERM, kOk},
    {"evict", orders<"/.pool/evict", "1 entries">,
     kEACCES, kOk, kOk, kOk, kOk, kEACCES, kOk},
};
// clang-format on

struct Column {
  const char* name;
  Attacker who;
  const char* pool;
  const char* Line::*expected;
};
constexpr Column kColumns[] = {
    {"AUser", Attacker::kUser, "owned", &Line::user},
    {"ThePoolsOwner", Attacker::kPoolOwner, "owned", &Line::owner},
    {"RootOfAContainer", Attacker::kContainerRoot, "roots", &Line::container},
    {"RootOfADockerContainer", Attacker::kDockerRoot, "owned", &Line::docker},
    {"RootOfAUserNamespace", Attacker::kUserNamespaceRoot, "roots", &Line::user_namespace},
    {"RootOfAUsersUserNamespace", Attacker::kUsersNamespaceRoot, "owned", &Line::users_namespace}};

class TableTest : public AuthorityTest, public ::testing::WithParamInterface<Column> {};

TEST_P(TableTest, MayDoWhatTheManualSays) {
  const Column& column = GetParam();
  KVCACHEFS_SKIP_IF(lacking(column.who));
  for (const Line& line : kLines) {
    const int error = attack_as(column.who, mount().path(column.pool), line.attempt);
    EXPECT_EQ(error_name(error), line.*column.expected) << attacker_name(column.who) << ": " << line.what;
  }
}

INSTANTIATE_TEST_SUITE_P(Authority, TableTest, ::testing::ValuesIn(kColumns),
                         [](const auto& column) { return std::string(column.param.name); });

TEST_F(AuthorityTest, TheAdministratorMayDoWhatTheManualSays) {
  for (const Line& line : kLines) {
    EXPECT_EQ(error_name(line.attempt(mount().path("roots"))), line.administrator) << line.what;
  }
  ASSERT_EQ(::mkdir((mount().root() + "/spare").c_str(), 0755), 0);
}

// A container that has the whole mount also sees the administrator's files, as uid 0.
TEST_F(AuthorityTest, OfTheWholeMountToo) {
  for (const Attacker who : {Attacker::kContainerRoot, Attacker::kDockerRoot}) {
    const auto tried = [&](const auto& attempt) {
      return error_name(attack_as(who, mount().root(), attempt));
    };
    EXPECT_EQ(tried([](const std::string& root) { return error_of(::mkdir((root + "/new").c_str(), 0755)); }),
              "EPERM");
    EXPECT_EQ(tried([](const std::string& root) { return error_of(::rmdir((root + "/spare").c_str())); }),
              "EPERM");
    EXPECT_EQ(tried([](const std::string& root) { return opens_access_log(root + "/roots"); }), "EPERM");
    for (const char* file : {"size", "size_max", "pinned_max", "spill", "scrub"}) {
      const std::string place = std::string("/.kvcachefs/pools/roots/") + file;
      EXPECT_EQ(tried([&](const std::string& root) { return write_once(root + place, "x"); }), "EPERM")
          << file;
      EXPECT_EQ(tried([&](const std::string& root) { return read_error(root + place); }), "EPERM") << file;
    }
  }
  EXPECT_EQ(list(mount().root()), (std::vector<std::string>{"owned", "p", "roots", "spare"}));
}

TEST(RuntimeDirectory, ThatIsAnothersIsRefused) {
  KVCACHEFS_NEED_DAEMON();
  const std::string directory = "/tmp/kv-runtime-of-another-" + std::to_string(::getpid());
  make_directory(directory, 0755);
  ASSERT_EQ(::chown(directory.c_str(), kOwner, kOwner), 0);
  EXPECT_THROW(Mount({.runtime_dir = directory}), MountError);
  std::filesystem::remove_all(directory);
}

TEST_F(AuthorityTest, ADescriptorHandedOnIsNoAuthority) {
  const File handed_on(administrators("size_max"), O_WRONLY);
  const auto write = [&](const std::string& = {}) { return error_of(::write(handed_on.fd(), "128M", 4)); };
  EXPECT_EQ(error_name(attack_as(Attacker::kUser, mount().path("roots"), write)), "EPERM");
  EXPECT_EQ(error_name(attack_as(Attacker::kContainerRoot, mount().path("roots"), write)), "EPERM");
  if (lacking(Attacker::kUserNamespaceRoot).empty()) {
    EXPECT_EQ(error_name(attack_as(Attacker::kUserNamespaceRoot, mount().path("roots"), write)), "EPERM");
  }
  // A program with all rights that is made to write a given text to a given descriptor.
  EXPECT_EQ(error_name(in_child([&] { return write(); })), "EPERM");
  EXPECT_EQ(read_file(administrators("size_max")), "64M\n");
  EXPECT_EQ(error_name(write()), "ok");
  EXPECT_EQ(error_name(write_once(administrators("size_max"), "64M")), "ok");
  EXPECT_EQ(in_child([&] {
              const File own(administrators("size_max"), O_WRONLY);
              if (::setresuid(kOwner, kOwner, kOwner) != 0) return 1;
              return error_of(::write(own.fd(), "128M", 4)) == EPERM ? 0 : 2;
            }),
            0)
      << "one that gave its rights up";
}

TEST_F(AuthorityTest, ATakeoverKeepsWhoMayWhat) {
  if (mode() == Mode::kIoUring) GTEST_SKIP() << "nobody takes over";
  ASSERT_EQ(error_name(write_once(administrators("size_max", "owned"), "96M")), "ok");
  const File opened(administrators("size_max"), O_WRONLY);
  ASSERT_EQ(takes_over(), 0);
  EXPECT_EQ(read_file(administrators("size_max", "owned")), "96M\n");
  const auto size = [](const char* value) {
    return attack_as(Attacker::kPoolOwner, mount().path("owned"),
                     [&](const std::string& place) { return write_once(place + "/.pool/size", value); });
  };
  EXPECT_EQ(error_name(size("97M")), "EPERM");
  EXPECT_EQ(error_name(size("96M")), "ok");
  EXPECT_EQ(error_name(in_child([&] { return error_of(::write(opened.fd(), "128M", 4)); })), "EPERM");
  EXPECT_EQ(error_of(::write(opened.fd(), "64M", 3)), 0);
  EXPECT_EQ(error_name(write_once(administrators("size", "owned"), "64M")), "ok");
}

TEST_F(AuthorityTest, TheAdministratorSetsTheLimits) {
  EXPECT_EQ(error_name(write_once(administrators("size"), "80M")), "ok");
  EXPECT_EQ(read_file(mount().control("size", "roots")), "80M\n");
  EXPECT_EQ(read_file(mount().control("size_max", "roots")), "80M\n") << "a new size is the new maximum";
  EXPECT_EQ(error_name(write_once(administrators("size_max"), "79M")), "EINVAL") << "less than the size";
  EXPECT_EQ(error_name(write_once(administrators("size"), "64M")), "ok");
  EXPECT_EQ(read_file(administrators("size_max")), "64M\n");
  EXPECT_EQ(error_name(write_once(mount().control("pinned_max", "roots"), "20%")), "ok");
  EXPECT_EQ(error_name(write_once(mount().control("pinned_max", "roots"), "21%")), "EPERM");
  EXPECT_EQ(error_name(write_once(administrators("pinned_max"), "50%")), "ok");
  EXPECT_EQ(error_name(write_once(mount().control("spill", "roots"), "/x 1G")), "EPERM");
  EXPECT_TRUE(eventually([&] {
    return mount().log().find(".kvcachefs/pools/roots/spill") != std::string::npos;
  })) << "the log names the place";
  EXPECT_EQ(list(mount().root() + "/.kvcachefs/pools"),
            (std::vector<std::string>{"owned", "p", "roots", "spare"}));
  EXPECT_EQ(
      list(mount().root() + "/.kvcachefs/pools/roots"),
      (std::vector<std::string>{"entries", "pinned_max", "reset", "scrub", "size", "size_max", "spill"}));
  EXPECT_FALSE(exists(mount().root() + "/.kvcachefs/pools/none"));
  ASSERT_EQ(::mkdir((mount().root() + "/none").c_str(), 0755), 0);
  EXPECT_TRUE(exists(administrators("size", "none")));
  ASSERT_EQ(::rmdir((mount().root() + "/none").c_str()), 0);
  EXPECT_FALSE(exists(administrators("size", "none")));
}

TEST_F(AuthorityTest, TheControlGroupMayDoWhatTheOwnerMay) {
  const gid_t group = 4321;
  const Mount grouped(
      {.pools = {"p:size=64M,uid=1001,gid=1001,mode=0755"}, .options = {"control_group=4321"}});
  const auto as = [&](std::vector<gid_t> groups, const std::function<int()>& call) {
    return error_name(in_child([&] {
      if (::setgroups(groups.size(), groups.data()) != 0 || ::setresgid(1234, 1234, 1234) != 0 ||
          ::setresuid(1234, 1234, 1234) != 0)
        return EXDEV;
      return call();
    }));
  };
  const auto writes = [&](std::vector<gid_t> groups, const char* file, const char* order) {
    return as(std::move(groups), [&] { return write_once(grouped.control(file), order); });
  };
  EXPECT_EQ(writes({group}, "size", "32M"), "ok");
  EXPECT_EQ(writes({group}, "evict", "100%"), "ok");
  EXPECT_EQ(as({group}, [&] { return read_error(grouped.control("entries")); }), "ok");
  EXPECT_EQ(writes({group}, "size", "128M"), "EPERM") << "beyond the owner's limit";
  EXPECT_EQ(writes({group}, "spill", "/x 1G"), "EPERM");
  EXPECT_EQ(as({group}, [&] { return write_once(grouped.administrators("size"), "128M"); }), "EACCES");
  EXPECT_EQ(as({group}, [&] { return error_of(::mkdir((grouped.path() + "/d").c_str(), 0755)); }), "EACCES")
      << "the pool itself is its owner's";
  EXPECT_EQ(writes({1001}, "size", "32M"), "EACCES") << "the pool's own group";
  EXPECT_EQ(as({1001}, [&] { return read_error(grouped.control("entries")); }), "EACCES");
  EXPECT_EQ(as({}, [&] { return read_error(grouped.control("stats")); }), "ok");
}

}  // namespace
}  // namespace kvcachefs::test
