#include "base/fault_point.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "base/log.h"
#include "base/mutex.h"
#include "base/progress.h"
#include "base/sys.h"

namespace kvcachefs {

namespace {

constexpr useconds_t kLookAgainUs = 1000;
constexpr useconds_t kSlowUs = 25'000;
constexpr std::string_view kFail = "fail ";
constexpr std::string_view kFailing = "failing ";

const std::string& fault_file() {
  static const std::string file = std::getenv("KVCACHEFS_FAULT_FILE");
  return file;
}

// take_line() removes the first line; of several threads only one succeeds.
bool take_line(const std::string& text, size_t end) {
  const std::string taken = fault_file() + ".taken";
  if (std::rename(fault_file().c_str(), taken.c_str()) != 0) return false;  // another thread was first
  log_error("fault point: {}", text.substr(0, end));
  if (end + 1 >= text.size()) return std::remove(taken.c_str()) == 0;
  std::ofstream(taken, std::ios::trunc) << text.substr(end + 1);
  return std::rename(taken.c_str(), fault_file().c_str()) == 0;
}

// mknod(2) opens no descriptor. A test may be counting the descriptors of this process.
void make_empty_file(const std::string& path) {
  (void)::mknod(path.c_str(), S_IFREG | 0644, 0);
  (void)::truncate(path.c_str(), 0);
}

void wait_for_the_test() {
  const std::string paused = fault_file() + ".paused";
  make_empty_file(paused);
  while (access(paused.c_str(), F_OK) == 0) {
    count_step();  // the thread waits for the test, and does not hang
    usleep(kLookAgainUs);
  }
}

// The rest of a line that begins with `KIND PLACE `; nullopt for a line of another kind or place.
struct Failure {
  int error = 0;
  int passes = 0;
};
std::optional<Failure> failure_in(std::string_view line, std::string_view kind, std::string_view place) {
  if (!line.starts_with(kind)) return std::nullopt;
  line.remove_prefix(kind.size());
  if (!line.starts_with(place) || !line.substr(place.size()).starts_with(' ')) return std::nullopt;
  Failure failure;
  std::istringstream(std::string(line.substr(place.size()))) >> failure.error >> failure.passes;
  return failure;
}

}  // namespace

const bool fault_points_are_on = std::getenv("KVCACHEFS_FAULT_FILE") != nullptr;

void reached(const char* place, uint64_t number) {
  const auto wanted = sys::read_text(fault_file().c_str());
  if (!wanted) return;
  const size_t end = std::min(wanted->find('\n'), wanted->size());
  const std::string here = number == 0 ? std::string(place) : fmt::format("{} {}", place, number);
  const auto is = [&, line = std::string_view(*wanted).substr(0, end)](std::string_view kind) {
    return line.starts_with(kind) && line.substr(kind.size()) == here;
  };
  const bool hangs = is("hang "), spins = is("spin "), pauses = is("pause "), slows = is("slow ");
  if (!hangs && !spins && !pauses && !slows && !is("")) return;
  if (slows) return static_cast<void>(usleep(kSlowUs));
  if (!take_line(*wanted, end)) return;
  if (pauses) return wait_for_the_test();
  if (hangs)
    for (;;) pause();
  for (volatile bool goes_on = spins; goes_on;) continue;
  std::abort();
}

bool holds(const char* place, uint64_t number) {
  static std::atomic<bool> held{false};
  const std::string paused = fault_file() + ".paused";
  if (held) {
    held = access(paused.c_str(), F_OK) == 0;
    return held;
  }
  const auto wanted = sys::read_text(fault_file().c_str());
  if (!wanted) return false;
  const size_t end = std::min(wanted->find('\n'), wanted->size());
  const std::string here = number == 0 ? std::string(place) : fmt::format("{} {}", place, number);
  if (wanted->substr(0, end) != "hold " + here || !take_line(*wanted, end)) return false;
  held = true;
  make_empty_file(paused);
  return true;
}

int wanted_error(std::string_view place) {
  static Mutex mutex;
  MutexLock lock(mutex);
  const auto wanted = sys::read_text(fault_file().c_str());
  if (!wanted) return 0;
  const std::string_view text = *wanted;
  const size_t end = std::min(text.find('\n'), text.size());
  if (const auto once = failure_in(text.substr(0, end), kFail, place)) {
    if (once->passes == 0) return take_line(*wanted, end) ? once->error : 0;
    const std::string fewer = fault_file() + ".fewer";
    std::ofstream(fewer, std::ios::trunc)
        << fmt::format("{}{} {} {}", kFail, place, once->error, once->passes - 1) << text.substr(end);
    // An exchange fails if the test has removed the fault meanwhile; a rename would bring it back.
    (void)::renameat2(AT_FDCWD, fewer.c_str(), AT_FDCWD, fault_file().c_str(), RENAME_EXCHANGE);
    (void)::unlink(fewer.c_str());
    return 0;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_end = std::min(text.find('\n', begin), text.size());
    if (const auto always = failure_in(text.substr(begin, line_end - begin), kFailing, place))
      return always->error;
    begin = line_end + 1;
  }
  return 0;
}

}  // namespace kvcachefs
