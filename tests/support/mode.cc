#include "tests/support/mode.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

bool kernel_at_least(int major, int minor) {
  utsname name{};
  ::uname(&name);
  int have_major = 0;
  int have_minor = 0;
  std::sscanf(name.release, "%d.%d", &have_major, &have_minor);
  return std::pair(have_major, have_minor) >= std::pair(major, minor);
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Mode mode() {
  const std::string name = environment("KVCACHEFS_TEST_MODE");
  if (name.empty() || name == "passthrough") return Mode::kPassthrough;
  if (name == "daemon_io") return Mode::kDaemonIo;
  if (name == "io_uring") return Mode::kIoUring;
  if (name == "tmpfs") return Mode::kTmpfs;
  throw std::runtime_error("KVCACHEFS_TEST_MODE=" + name +
                           " is none of passthrough, daemon_io, io_uring, tmpfs");
}

std::string_view mode_name() {
  constexpr std::string_view kNames[] = {"passthrough", "daemon_io", "io_uring", "tmpfs"};
  return kNames[static_cast<int>(mode())];
}

bool everything_required() {
  return environment("KVCACHEFS_REQUIRE") == "all";
}

bool every_pool_spills() {
  return environment("KVCACHEFS_TEST_SPILL") == "1";
}

bool servers_are_killed() {
  return environment("KVCACHEFS_TEST_KILL") == "1";
}

std::string missing_capability() {
  if (::geteuid() != 0) return "root (mounting, passthrough)";
  if (mode() == Mode::kTmpfs) return "";
  if (!exists("/dev/fuse")) return "/dev/fuse";
  if (mode() != Mode::kDaemonIo && !kernel_at_least(6, 9)) return "FUSE passthrough (kernel 6.9)";
  if (mode() == Mode::kIoUring) {
    const std::string parameter = "/sys/module/fuse/parameters/enable_uring";
    if (!exists(parameter)) return "FUSE over io_uring (kernel 6.14)";
    if (!read_file(parameter).starts_with("Y")) return "Y in " + parameter;
  }
  return "";
}

std::string missing_daemon() {
  return mode() == Mode::kTmpfs ? "a daemon (this is the tmpfs mode)" : missing_capability();
}

}  // namespace kvcachefs::test
