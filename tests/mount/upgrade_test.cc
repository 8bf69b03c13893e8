// Upgrades in place: what the supervisor asks a new program, what it does with the answer, and what becomes
// of a program that cannot serve after all.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "daemon/succession.h"
#include "tests/support/aborted_test.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/program.h"
#include "tests/support/programs.h"
#include "tests/support/supervised_test.h"

namespace kvcachefs::test {
namespace {

class UpgradeTest : public SupervisedTest {};
class UpgradeAbortedTest : public AbortedTest {};

TEST_F(UpgradeTest, UpgradesToWhatIsInstalled) {
  Programs programs;
  start();
  const File open(mount().path() + "/entry", O_RDWR);
  const std::string pid = daemon_stat("pid");
  EXPECT_EQ(daemon_stat("supervisor_pid"), std::to_string(mount().pid()));
  EXPECT_EQ(daemon_stat("generation"), "0");
  programs.install_program(programs.real());
  const Outcome outcome = upgrade();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(outcome.out, mount().root() + ": kvcachefs " KVCACHEFS_VERSION "\n");
  EXPECT_NE(daemon_stat("pid"), pid);
  EXPECT_EQ(daemon_stat("generation"), "1");
  const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(mount().pid()) + "/exe");
  EXPECT_EQ(program.string().find("deleted"), std::string::npos) << "it is still the old one";
  EXPECT_EQ(::pwrite(open.fd(), "still open", 10, 0), 10);
  EXPECT_EQ(read_at(open.fd(), 0, 10), "still open");
}

TEST_F(UpgradeTest, RefusesWhatCouldNotGoOn) {
  Programs programs;
  start();
  const std::string pid = daemon_stat("pid");
  // The supervisor asks a new program these questions before any process ends.
  programs.install("#!/bin/sh\necho 'not today' >&2\nexit 7\n");
  expect_refusal("cannot go on with what is served here: not today");
  programs.install("#!/bin/sh\nexit 7\n");
  expect_refusal("it ends with status");
  programs.install("#!/bin/sh\nexec sleep 100\n");
  expect_refusal("it does not answer");
  programs.install("no program\n");
  expect_refusal("it ends with status");
  // The real program, which is told that the state has the formats of a newer program.
  programs.install("#!/bin/sh\nshift\nexec " + programs.real() + " --can-succeed=2.1.9 \"$@\"\n");
  expect_refusal("formats 2.1.9 (memory, disk, catalog) of what is there, this program's are " +
                 own_formats());
  EXPECT_NE(read_file(mount().root() + "/.kvcachefs/upgrades").find("refused 5\n"), std::string::npos);
  EXPECT_EQ(daemon_stat("pid"), pid);
  expect_entry();
}

// The question takes as long as the new program likes, and clients need the next child.
TEST_F(UpgradeTest, AChildThatDiesDuringTheQuestionIsReplacedFirst) {
  Programs programs;
  start();
  const std::string asked = mount().runtime_dir() + "/asked";
  // The second time the program answers at once.
  programs.install("#!/bin/sh\nif mkdir 2>/dev/null " + asked +
                   "; then exec sleep 100; fi\necho 'not today' >&2\nexit 7\n");
  Program upgrading({"kvcachefs", "--mount", mount().root(), "upgrade"});
  ASSERT_TRUE(eventually([&] { return exists(asked); }));
  ASSERT_EQ(::kill(std::atoi(daemon_stat("pid").c_str()), SIGKILL), 0);
  expect_entry();
  const Outcome outcome = upgrading.wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.error.find("not today"), std::string::npos)
      << "the first question was not given up: " << outcome.error;
  EXPECT_EQ(daemon_stat("generation"), "1");
}

TEST_F(UpgradeTest, AStopDoesNotWaitForTheAnswer) {
  Programs programs;
  start();
  const std::string asked = mount().runtime_dir() + "/asked";
  programs.install("#!/bin/sh\nmkdir " + asked + "\nexec sleep 100\n");
  ASSERT_EQ(::kill(mount().pid(), SIGHUP), 0);
  ASSERT_TRUE(eventually([&] { return exists(asked); }));
  ASSERT_EQ(::rmdir(asked.c_str()), 0);
  ASSERT_EQ(::kill(mount().pid(), SIGTERM), 0);
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 0);
  EXPECT_EQ(mount().log().find("no upgrade"), std::string::npos) << "the question was not given up";
}

// A program that can go on by what it says, and ends when it is to.
TEST_F(UpgradeTest, TheProgramFromBeforeGoesOnWhereTheNewOneEnds) {
  Programs programs;
  start();
  const File open(mount().path() + "/entry", O_RDWR);
  File nameless(mount().path() + "/nameless", O_RDWR | O_CREAT);
  ASSERT_EQ(::write(nameless.fd(), "nameless", 8), 8);
  ASSERT_EQ(::unlink((mount().path() + "/nameless").c_str()), 0);
  programs.install("#!/bin/sh\ncase $1 in --can-succeed*) exit 0 ;; esac\nexit 7\n");
  expect_refusal("the new program ended before it served; the program from before goes on");
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 7) << "it was the new program by then";
  expect_entry();
  EXPECT_EQ(::pwrite(open.fd(), "still open", 10, 0), 10);
  EXPECT_EQ(read_at(nameless.fd(), 0, 10), "nameless");
  EXPECT_EQ(store(mount().path() + "/another", pattern(2, kMiB)), 0);
  // It goes on as any supervisor does.
  const auto supervisor = static_cast<pid_t>(std::atoi(daemon_stat("supervisor_pid").c_str()));
  EXPECT_NE(supervisor, mount().pid());
  ASSERT_EQ(::kill(std::atoi(daemon_stat("pid").c_str()), SIGKILL), 0);
  EXPECT_EQ(difference(2, read_file(mount().path() + "/another")), "");
  programs.install_program(programs.real());
  const Outcome outcome = upgrade();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(daemon_stat("supervisor_pid"), std::to_string(supervisor));
  EXPECT_EQ(difference(2, read_file(mount().path() + "/another")), "");
  ASSERT_EQ(::kill(supervisor, SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return mounts_below(mount().root()).empty(); }));
  EXPECT_TRUE(eventually([&] { return mounts_below(mount().runtime_dir()).empty(); }));
}

TEST_F(UpgradeTest, AndWhereItHangs) {
  Programs programs;
  start({.options = {"hang_after=1"}});
  programs.install("#!/bin/sh\ncase $1 in --can-succeed*) exit 0 ;; esac\nexec sleep 1000\n");
  expect_refusal("the new program ended before it served; the program from before goes on");
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 128 + SIGKILL);
  expect_entry();
  ASSERT_EQ(::kill(std::atoi(daemon_stat("supervisor_pid").c_str()), SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return mounts_below(mount().root()).empty(); }));
}

TEST_F(UpgradeTest, AndWhereItsChildrenCannotTakeOver) {
  Programs programs;
  const std::string file = start_with_faults();
  programs.install_program(programs.real());
  ASSERT_EQ(store(file, "taken over\ntaken over\ntaken over\n"), 0);
  expect_refusal("the new program ended before it served; the program from before goes on");
  EXPECT_EQ(mount().wait_for_exit(std::chrono::seconds(60)), 1);
  expect_entry();
  EXPECT_EQ(upgrade().exit_code, 0);
  expect_entry();
  ASSERT_EQ(::kill(std::atoi(daemon_stat("supervisor_pid").c_str()), SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return mounts_below(mount().root()).empty(); }));
  ::unlink(file.c_str());
}

// From a version that lays out what survives in one way to one that does it in another, and back.
TEST_F(UpgradeTest, AnUpgradeToAnotherLayoutOfTheMemory) {
  Programs programs;
  const std::string of_tomorrow = programs.real() + "_of_tomorrow";
  start();
  File open(mount().path() + "/entry", O_RDWR);
  File nameless(mount().path() + "/nameless", O_RDWR | O_CREAT);
  ASSERT_EQ(::write(nameless.fd(), "nameless", 8), 8);
  ASSERT_EQ(::unlink((mount().path() + "/nameless").c_str()), 0);
  int generation = 0;
  for (const std::string& program : {of_tomorrow, of_tomorrow, programs.real()}) {
    programs.install_program(program);
    const Outcome outcome = upgrade();
    ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
    expect_entry();
    EXPECT_EQ(read_at(nameless.fd(), 0, 10), "nameless");
    EXPECT_EQ(store(mount().path() + "/another", pattern(2, kMiB)), 0);
    const File newer(mount().path() + "/another", O_RDONLY);
    ASSERT_EQ(::kill(std::atoi(daemon_stat("pid").c_str()), SIGKILL), 0);
    EXPECT_EQ(difference(2, read_at(newer.fd(), 0, kMiB)), "");
    EXPECT_EQ(daemon_stat("generation"), std::to_string(generation += 2));
    EXPECT_EQ(daemon_stat("supervisor_pid"), std::to_string(mount().pid()));
  }
  const std::string log = mount().log();
  size_t copies = 0;
  for (size_t at = 0; (at = log.find("laid out in another way", at)) != std::string::npos; ++at) ++copies;
  EXPECT_EQ(copies, 2u) << "to that layout and back, and not from it to itself";
  // No handle is forgotten: what is open stays, and what is closed may go.
  EXPECT_EQ(::pwrite(open.fd(), "still open", 10, 0), 10);
  EXPECT_EQ(read_at(open.fd(), 0, 10), "still open");
}

TEST_F(UpgradeTest, BeforeLinux69TheKernelIsTheReason) {
  const std::string file = "/tmp/kv-fault-" + std::to_string(::getpid());
  write_file(file, "failing keep requests 1\n");
  start_with_faults();
  expect_refusal("Linux 6.9");
  ::unlink(file.c_str());
}

// A new program is shown what is in memory when it is asked, so that it finds what it cannot read.
TEST_F(UpgradeTest, TheQuestionIsOfWhatIsInMemory) {
  Programs programs;
  start();
  const std::string shown = mount().runtime_dir() + "/shown";
  programs.install("#!/bin/sh\ncp /proc/self/fd/$KVCACHEFS_SHOWN_MEMORY " + shown +
                   "\necho 'not today' >&2\nexit 7\n");
  expect_refusal("not today");
  EXPECT_NE(read_file(shown).find("pool 1 p\n"), std::string::npos) << "the list of pools";
  // The real program, which is shown a list of pools with a setting of a newer one.
  const std::string newer = shown + ".newer";
  programs.install("#!/bin/sh\nsed 's/^size /sise /' " + shown + " >" + newer + "\nexec 3<" + newer +
                   "\nexport KVCACHEFS_SHOWN_MEMORY=3\nexec " + programs.real() + " \"$@\"\n");
  expect_refusal("sise");
  ::unlink(shown.c_str());
  ::unlink(newer.c_str());
}

TEST_F(UpgradeTest, AnUpgradeIsOfTheProcessThatIsNamed) {
  start();
  const Mount other;
  EXPECT_EQ(run({"kvcachefs", "upgrade", "--pid", std::to_string(mount().pid())}).error, "");
  EXPECT_EQ(daemon_stat("generation"), "1");
}

TEST_F(UpgradeTest, WithoutOneThereIsNoUpgrade) {
  start({.options = {"no_supervisor"}});
  EXPECT_EQ(daemon_stat("supervisor_pid"), "0");
  EXPECT_EQ(mount().serving_pid(), 0);
  const Outcome outcome = upgrade();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.error.find("no supervisor"), std::string::npos) << outcome.error;
}

// Whichever comes first, the upgrade is done, or refused, or its outcome is unknown, and the pools are
// served.
TEST_F(UpgradeAbortedTest, OfAConnectionThatIsAbortedInTheSameMoment) {
  Programs programs;
  start();
  const std::string a = work_dir_ + "/a";
  make_directory(a);
  ASSERT_EQ(error_of(::mount(mount().path().c_str(), a.c_str(), nullptr, MS_BIND, nullptr)), 0);
  mount().stop_squeezing();
  programs.install_program(programs.real());
  for (int round = 0; round < 10; ++round) {
    Program upgrade({"kvcachefs", "--mount", mount().root(), "upgrade"});
    std::this_thread::sleep_for(std::chrono::milliseconds(round * 23));  // so that they meet at another point
    ASSERT_NO_FATAL_FAILURE(abort());
    const Outcome outcome = upgrade.wait();
    // 3: the abort came before the order, when no daemon answered.
    EXPECT_TRUE(outcome.exit_code <= 1 || outcome.exit_code == 3) << round << outcome.error;
    for (const std::string& where : {mount().path(), a}) expect_entry(where + "/entry");
    EXPECT_EQ(mounts_below(mount().root()).size(), 1u) << round;
    EXPECT_EQ(mounts_below(a).size(), 1u) << round;
    EXPECT_EQ(daemon_stat("supervisor_pid"), std::to_string(mount().pid())) << round << outcome.error;
  }
  EXPECT_EQ(run({"kvcachefs", "--mount", mount().root(), "upgrade"}).exit_code, 0);
}

}  // namespace
}  // namespace kvcachefs::test
