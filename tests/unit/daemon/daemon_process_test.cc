#include "daemon/cli/daemon_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/sys.h"
#include "tests/support/files.h"
#include "tests/unit/daemon/fake_mount.h"

namespace kvcachefs::daemon_process_test {

using namespace std::string_view_literals;

// A process with the daemon's name whose standard error is the descriptor.
class FakeDaemon {
 public:
  explicit FakeDaemon(int standard_error, uid_t user = ::geteuid()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::prctl(PR_SET_NAME, "kvcachefsd");
      ::dup2(standard_error, STDERR_FILENO);
      (void)!::write(ends[1], ::setuid(user) == 0 ? "1" : "0", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    EXPECT_EQ(byte, '1');
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~FakeDaemon() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(DaemonProcess, IsKnownByItsName) {
  EXPECT_FALSE(is_daemon(0));
  EXPECT_FALSE(is_daemon(::getpid()));
  const FakeDaemon daemon(STDERR_FILENO);
  EXPECT_EQ(is_daemon(daemon.pid()), ::geteuid() == 0);
  if (::geteuid() != 0) return;
  const FakeDaemon of_a_user(STDERR_FILENO, 4711);
  EXPECT_FALSE(is_daemon(of_a_user.pid()));
}

TEST(DaemonProcess, ItsLogIsTheFileThatItWritesTo) {
  test::FakeMount place;
  place.write("log", std::string(300 << 10, 'x') + "\nlast\n");
  place.write("another", "wrong\n");
  const std::string root = place.root(), file = root + "/log";
  const test::File open(file, O_WRONLY | O_APPEND | O_CLOEXEC);
  const FakeDaemon daemon(open.fd());
  DaemonLog log = log_of(daemon.pid(), root + "/another");
  EXPECT_EQ(log.place, std::filesystem::canonical(file));
  EXPECT_EQ(log.end.value_or("none"), "last\n");
  std::filesystem::remove(file);
  log = log_of(daemon.pid(), root + "/another");
  EXPECT_EQ(log.end.value_or("none"), "last\n") << "a file without a name has a log, too";
}

TEST(DaemonProcess, ItsLogIsTheJournalOfItsService) {
  test::FakeMount place;
  place.write("journalctl", "#!/bin/sh\necho \"$2\"\n");
  std::filesystem::permissions(place.root() / "journalctl", std::filesystem::perms::owner_all);
  place.write("another", "wrong\n");
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (place.root().native() + ":" + path).c_str(), 1);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FakeDaemon daemon(ends[0]);
  const std::string service = service_in(sys::read_text("/proc/self/cgroup").value());
  const DaemonLog log = log_of(daemon.pid(), place.root() / "another");
  if (service.empty()) {
    ASSERT_FALSE(log.end);
    EXPECT_TRUE(log.end.error().message.starts_with("it leads to socket:[")) << log.end.error().message;
  } else {
    EXPECT_EQ(log.place, "the journal of " + service);
    EXPECT_EQ(log.end.value_or("none"), service + "\n");
  }
  EXPECT_EQ(journal_of("kv\\x2d1.service").end.value_or("none"), "kv\\x2d1.service\n");
  ::setenv("PATH", path.c_str(), 1);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(DaemonProcess, ALogThatCannotBeReadIsNoOther) {
  test::FakeMount place;
  place.write("another", "wrong\n");
  const test::File null("/dev/null", O_WRONLY | O_CLOEXEC);
  const FakeDaemon daemon(null.fd());
  const DaemonLog log = log_of(daemon.pid(), place.root() / "another");
  ASSERT_FALSE(log.end);
  EXPECT_EQ(log.end.error().message, "it leads to /dev/null");
}

TEST(DaemonProcess, ItsServiceIsTheLastOfItsControlGroup) {
  EXPECT_EQ(service_in("0::/system.slice/kvcachefs.service\n"), "kvcachefs.service");
  EXPECT_EQ(service_in("4:memory:/x.service\n1:name=systemd:/system.slice/a.service\n0::/\n"), "a.service");
  EXPECT_EQ(service_in("0::/kvcachefs.slice/kvcachefs-mount-7.scope\n"), "");
  EXPECT_EQ(service_in("0::/user.slice/user@0.service/app.slice/x.scope\n"), "");
  EXPECT_EQ(service_in("0::/it's.service\n"), "");
  EXPECT_EQ(service_in(""), "");
}

TEST(DaemonProcess, ItsConfigurationIsTheOneThatItsCommandLineNames) {
  EXPECT_EQ(config_named_in("kvcachefsd\0--config\0/etc/kv.toml\0/mnt/kv\0"sv), "/etc/kv.toml");
  EXPECT_EQ(config_named_in("kvcachefsd\0--config=a b\0"sv), "a b");
  EXPECT_EQ(config_named_in("kvcachefsd\0--check-config\0--pool\0p\0"sv), "");
  EXPECT_EQ(config_named_in("kvcachefsd\0--config"sv), "");
  const auto words = command_line_of(::getpid());
  ASSERT_TRUE(words);
  EXPECT_EQ(words->find('\0'), std::string::npos);
  EXPECT_EQ(configuration_files_of(::getpid()).value_or("wrong"), "");
  EXPECT_FALSE(command_line_of(-1));
}

// A container's own links must not show what the host has.
TEST(DaemonProcess, ItsConfigurationIsLookedForBelowItsRoot) {
  test::FakeMount place;
  std::filesystem::create_directories(place.root() / "etc/kv.d");
  place.write("etc/kv.toml", "its own\n");
  place.write("etc/kv.d/more.toml", "more\n");
  const std::string root = place.root();
  const auto read_by = [&](const std::string& file) {
    const auto text = configuration_files_in(root, file);
    return text ? *text : text.error().message;
  };
  EXPECT_EQ(read_by("/etc/kv.toml"), "# /etc/kv.toml\nits own\n# /etc/kv.d/more.toml\nmore\n");
  std::filesystem::create_symlink("/etc/kv.toml", root + "/etc/link.toml");
  EXPECT_EQ(read_by("/etc/link.toml"), "# /etc/link.toml\nits own\n");
  for (const char* const of_the_host : {"/etc/passwd", "../../../../../../etc/passwd"}) {
    std::filesystem::remove(root + "/etc/link.toml");
    std::filesystem::create_symlink(of_the_host, root + "/etc/link.toml");
    EXPECT_EQ(read_by("/etc/link.toml"), "/etc/link.toml: No such file or directory");
  }
  ASSERT_EQ(::mkfifo((root + "/etc/fifo.toml").c_str(), 0600), 0);
  EXPECT_EQ(read_by("/etc/fifo.toml"), "/etc/fifo.toml: is no file");
}

}  // namespace kvcachefs::daemon_process_test
