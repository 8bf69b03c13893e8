// Parity tests: a scenario makes calls in a directory and notes each result; its transcript on the mount has
// to equal the one on a plain tmpfs. Where POSIX leaves no choice a scenario asserts as well. One thread. A
// failed call is a result, not a failure of the test.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {

class Transcript {
 public:
  // call() notes the result of a call, errors by name, and returns the result.
  long call(std::string_view what, long result);
  void note(std::string_view what, std::string_view value);
  void note(std::string_view what, long value);
  // status() notes type, mode, links, owner, size and device of a name (lstat), but not what may differ:
  // inode, times, blocks.
  void status(std::string_view what, const std::string& path);
  void content(std::string_view what, const std::string& path);
  void listing(std::string_view what, const std::string& directory);

  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

using Scenario = void (*)(Transcript& transcript, const std::string& directory);

// The fixture of PARITY_TEST: one mount and one plain tmpfs for all scenarios of a program.
class ParityTest : public SharedMount<ParityTest> {
 public:
  static bool needs_daemon() { return false; }
  static MountOptions options() { return {.pools = {"p:size=256M"}}; }

 protected:
  // compare() runs the scenario in a fresh directory on the mount and in one on the plain tmpfs.
  void compare(Scenario scenario);
};

#define PARITY_TEST(name)                                                                               \
  static void name##_scenario(::kvcachefs::test::Transcript& transcript, const std::string& directory); \
  TEST_F(ParityTest, name) {                                                                            \
    compare(name##_scenario);                                                                           \
  }                                                                                                     \
  static void name##_scenario([[maybe_unused]] ::kvcachefs::test::Transcript& transcript,               \
                              [[maybe_unused]] const std::string& directory)

}  // namespace kvcachefs::test
