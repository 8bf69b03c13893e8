// What the environment asks of the mount tests, and whether this machine can do it.
//
// KVCACHEFS_TEST_MODE is passthrough (default), daemon_io, io_uring, or tmpfs (no daemon: each pool is a
// plain tmpfs, which proves the parity tests against themselves). KVCACHEFS_REQUIRE=all makes a missing
// capability a failure. KVCACHEFS_DAEMON_ARGS adds arguments to every daemon. KVCACHEFS_TEST_SPILL=1 gives a
// disk tier to each pool that names none, and orders its entries out of memory all the time: tests written
// without a disk tier then prove that a client does not notice one. KVCACHEFS_TEST_KILL=1 kills the serving
// process of every daemon all the time: tests written without such deaths then prove that a client does not
// notice them.
//
// Any thread. Failure: mode() throws std::runtime_error for a mode that there is not.
#pragma once

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace kvcachefs::test {

enum class Mode { kPassthrough, kDaemonIo, kIoUring, kTmpfs };

Mode mode();
std::string_view mode_name();
std::string environment(const char* name);  // empty: not set

// Why this mode cannot run on this machine; empty if it can.
std::string missing_capability();
// The same for tests that need a daemon (control files, eviction): the tmpfs mode is also a reason.
std::string missing_daemon();
bool everything_required();
bool every_pool_spills();   // KVCACHEFS_TEST_SPILL=1
bool servers_are_killed();  // KVCACHEFS_TEST_KILL=1

// The first line of a test or of SetUp() that cannot run if `reason` says that something is missing.
#define KVCACHEFS_SKIP_IF(reason)                                                         \
  do {                                                                                    \
    if (const std::string skip_reason = (reason); !skip_reason.empty()) {                 \
      if (::kvcachefs::test::everything_required()) FAIL() << "missing: " << skip_reason; \
      GTEST_SKIP() << skip_reason;                                                        \
    }                                                                                     \
  } while (false)

#define KVCACHEFS_NEED_MOUNT() KVCACHEFS_SKIP_IF(::kvcachefs::test::missing_capability())
#define KVCACHEFS_NEED_DAEMON() KVCACHEFS_SKIP_IF(::kvcachefs::test::missing_daemon())

}  // namespace kvcachefs::test
