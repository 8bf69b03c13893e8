// One line of progress, which is redrawn in place on a terminal and not drawn elsewhere. One thread. Never
// fails.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/cli/cli.h"

namespace kvcachefs {

// The line is `[######....]  60% 12 of 20 entries 24M 1.2G/s 8s left`. `bytes` counts what is done; a total
// of 0 is not known yet.
std::string progress_line(uint64_t done, uint64_t total, uint64_t bytes, double seconds);

// The line is `[######....]  60% 12G of 20G 1.2G/s 8s left`.
std::string byte_progress_line(uint64_t done_bytes, uint64_t total_bytes, double seconds);

class ProgressBar {
 public:
  explicit ProgressBar(const CliEnvironment& environment);
  // The destructor clears the line, so that the next output starts there.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(uint64_t done, uint64_t total, uint64_t bytes);
  // The caller may call this as often as it likes: the bar is redrawn every 0.1 s at most.
  void show_bytes(uint64_t done_bytes, uint64_t total_bytes);
  double seconds() const;  // since the bar was made

 private:
  const CliEnvironment& environment_;
  const uint64_t started_ns_;
  void draw(const std::string& line);

  bool drawn_ = false;
  double drawn_at_s_ = 0;
};

}  // namespace kvcachefs
