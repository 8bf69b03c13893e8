#include "base/risky_read.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE};

thread_local const std::string* being_read = nullptr;
// The file stays open, because a process whose table of descriptors is full may die too.
int deaths_fd = -1;
std::string deaths_file;
std::array<struct sigaction, kSignals.size()> before;

void write_lines(int fd, std::string_view head, std::string_view what, std::string_view end) {
  const auto piece = [](std::string_view text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
  const std::array pieces = {piece(head), piece(what), piece(end)};
  [[maybe_unused]] const ssize_t written = ::writev(fd, pieces.data(), pieces.size());
}

void on_fault(int signal, siginfo_t* info, void*) {
  RiskyRead::note_death();
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal) (void)sigaction(signal, &before[i], nullptr);
  // A fault comes again by itself when the handler returns; a signal that a process has sent does not.
  if (info->si_code <= 0) (void)raise(signal);
}

std::string lines_of_deaths() {
  return "\n" + sys::read_text(deaths_file.c_str()).value_or("");
}

}  // namespace

RiskyRead::RiskyRead(const std::string& what) : before_(std::exchange(being_read, &what)) {}

RiskyRead::~RiskyRead() {
  being_read = before_;
}

void RiskyRead::note_death() {
  if (being_read == nullptr) return;
  const std::string& what = *std::exchange(being_read, nullptr);
  write_lines(STDERR_FILENO, "<3>", what,
              ": to read it ends the process: damaged, or not given by its disk\n");
  write_lines(deaths_fd, "", what, "\n");
}

void RiskyRead::note_deaths_in(const std::string& file, bool afresh) {
  deaths_file = file;
  deaths_fd = -1;
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | (afresh ? O_TRUNC : 0);
  if (auto opened = sys::open_at(AT_FDCWD, file.c_str(), flags, 0600)) deaths_fd = opened->release();
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  for (size_t i = 0; i < kSignals.size(); ++i) (void)sigaction(kSignals[i], &action, &before[i]);
}

bool RiskyRead::was_deadly(std::string_view what) {
  return lines_of_deaths().contains("\n" + std::string(what) + "\n");
}

void RiskyRead::forget(std::string_view what) {
  std::string left = lines_of_deaths();
  const std::string line = "\n" + std::string(what) + "\n";
  const size_t all = left.size();
  for (size_t at = left.find(line); at != std::string::npos; at = left.find(line))
    left.erase(at, line.size() - 1);
  if (left.size() == all) return;
  (void)sys::truncate(deaths_fd, 0);
  (void)sys::write_at(deaths_fd, std::string_view(left).substr(1), 0);
}

}  // namespace kvcachefs
