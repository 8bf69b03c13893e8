// One line of progress that is drawn again in place on a terminal, and is not drawn elsewhere. One thread.
// Never fails.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/cli/cli.h"

namespace kvcachefs {

// `[######....]  60% 12 of 20 entries 24M 1.2G/s 8s left`. `bytes` is of what is done; a total of 0 is not
// known yet.
std::string progress_line(uint64_t done, uint64_t total, uint64_t bytes, double seconds);

// `[######....]  60% 12G of 20G 1.2G/s 8s left`.
std::string byte_progress_line(uint64_t done_bytes, uint64_t total_bytes, double seconds);

class ProgressBar {
 public:
  explicit ProgressBar(const CliEnvironment& environment);
  // Leaves the line to what is written next.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(uint64_t done, uint64_t total, uint64_t bytes);
  // May be called as often as one likes.
  void show_bytes(uint64_t done_bytes, uint64_t total_bytes);
  double seconds() const;  // since it was made

 private:
  const CliEnvironment& environment_;
  const uint64_t started_ns_;
  void draw(const std::string& line);

  bool drawn_ = false;
  double drawn_at_s_ = 0;
};

}  // namespace kvcachefs
