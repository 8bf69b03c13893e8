#include "daemon/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "base/clock.h"
#include "base/size.h"
#include "daemon/cli/views.h"

namespace kvcachefs {
namespace {

constexpr size_t kBarWidth = 30;
// A rate over less time says more of the start than of the disk.
constexpr double kLeastSeconds = 0.2;

constexpr double kBetweenDrawsSeconds = 0.1;

std::string bar(uint64_t done, uint64_t total) {
  const double part = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
  const auto filled = static_cast<size_t>(part * kBarWidth);
  return fmt::format("[{}{}] {:3}%", std::string(filled, '#'), std::string(kBarWidth - filled, '.'),
                     static_cast<unsigned>(part * 100));
}

std::string rate_and_rest(uint64_t bytes, uint64_t done, uint64_t total, double seconds) {
  if (seconds < kLeastSeconds) return {};
  std::string text =
      fmt::format(" {}/s", format_size(static_cast<uint64_t>(static_cast<double>(bytes) / seconds)));
  if (done == 0 || done == total) return text;
  const double left_s = seconds / static_cast<double>(done) * static_cast<double>(total - done);
  return text + fmt::format(" {} left", format_duration(static_cast<uint64_t>(left_s + 0.5)));
}

}  // namespace

std::string progress_line(uint64_t done, uint64_t total, uint64_t bytes, double seconds) {
  done = std::min(done, total);
  return fmt::format("{} {} of {} entries {}{}", bar(done, total), done, total, format_size(bytes),
                     rate_and_rest(bytes, done, total, seconds));
}

std::string byte_progress_line(uint64_t done_bytes, uint64_t total_bytes, double seconds) {
  done_bytes = std::min(done_bytes, total_bytes);
  return fmt::format("{} {} of {}{}", bar(done_bytes, total_bytes), format_size(done_bytes),
                     format_size(total_bytes), rate_and_rest(done_bytes, done_bytes, total_bytes, seconds));
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
  draw(progress_line(done, total, bytes, seconds()));
}

void ProgressBar::show_bytes(uint64_t done_bytes, uint64_t total_bytes) {
  const double now_s = seconds();
  if (drawn_ && done_bytes < total_bytes && now_s - drawn_at_s_ < kBetweenDrawsSeconds) return;
  drawn_at_s_ = now_s;
  draw(byte_progress_line(done_bytes, total_bytes, now_s));
}

void ProgressBar::draw(const std::string& line) {
  if (!environment_.terminal) return;
  environment_.out << '\r' << line << "\033[K";
  environment_.out.flush();
  drawn_ = true;
}

}  // namespace kvcachefs
