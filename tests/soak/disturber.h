// The Disturber has the serving process replaced now and then, by SIGKILL and by an upgrade in turn, and
// notices each replacement that it did not cause, and each call that does not come back.
//
// One thread, which waits for no mount but in an upgrade. Failures are written to the Record.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "tests/soak/record.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::soak {

class Disturber {
 public:
  Disturber(Record& record, const test::Mount& mount, uint64_t seconds, uint64_t seed);

  // Looks, and disturbs when it is time to.
  void step();
  // The daemon's own count of its processes, and its log, agree with what was done to it.
  void check_end();
  std::string summary() const;

 private:
  void look_for_hangs();
  void look_after_server();
  void kill();
  void upgrade();
  uint64_t any_pause_ns();

  Record& record_;
  const test::Mount& mount_;
  uint64_t pause_ns_;
  test::Random random_;
  uint64_t next_ns_;
  pid_t serving_;       // 0: its successor has not been seen yet
  pid_t replaced_ = 0;  // the process that was killed last
  uint64_t kills_ = 0, upgrades_ = 0, handovers_ = 0;
};

}  // namespace kvcachefs::soak
