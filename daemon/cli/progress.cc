#include "daemon/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "base/clock.h"
#include "base/size.h"
#include "daemon/cli/views.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kBarWidth = 30;
// A rate of less says more of the start than of the disk.
constexpr double kLeastSeconds = 0.2;

}  // namespace

std::string progress_line(uint64_t done, uint64_t total, uint64_t bytes, double seconds) {
  done = std::min(done, total);
  const uint64_t filled = total == 0 ? 0 : done * kBarWidth / total;
  std::string line = fmt::format("[{}{}] {:3}% {} of {} entries {}", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), total == 0 ? 0 : done * 100 / total,
                                 done, total, format_size(bytes));
  if (seconds < kLeastSeconds) return line;
  line += fmt::format(" {}/s", format_size(static_cast<uint64_t>(static_cast<double>(bytes) / seconds)));
  if (done == 0 || done == total) return line;
  const double left_s = seconds / static_cast<double>(done) * static_cast<double>(total - done);
  return line + fmt::format(" {} left", format_duration(static_cast<uint64_t>(left_s + 0.5)));
}

ProgressBar::ProgressBar(const CliEnvironment& environment)
    : environment_(environment), started_ns_(now_ns()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) environment_.out << "\r\033[K";
}

double ProgressBar::seconds() const {
  return static_cast<double>(now_ns() - started_ns_) / 1e9;
}

void ProgressBar::show(uint64_t done, uint64_t total, uint64_t bytes) {
  if (!environment_.terminal) return;
  environment_.out << '\r' << progress_line(done, total, bytes, seconds()) << "\033[K";
  environment_.out.flush();
  drawn_ = true;
}

}  // namespace kvcachefs
