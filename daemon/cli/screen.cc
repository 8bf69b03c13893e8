#include "daemon/cli/screen.h"

#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "base/sys.h"

namespace kvcachefs {
namespace {

// The other screen of the terminal, without a cursor and without wrapping lines; and back.
constexpr std::string_view kEnter = "\033[?1049h\033[?25l\033[?7l";
constexpr std::string_view kLeave = "\033[?7h\033[?25h\033[?1049l";
constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};

termios before_;  // of the terminal, for the signals' handler

void restore() {
  (void)!::write(STDOUT_FILENO, kLeave.data(), kLeave.size());
  (void)::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

// The handler was taken off when it was called, so that the signal ends the process at its end.
void restore_and_end(int signal) {
  restore();
  (void)std::raise(signal);
}

void note_new_size(int) {}  // poll(2) has ended, which is enough

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool has_utf8() {
  const locale_t locale = ::newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale == nullptr) return false;
  const bool result = std::string_view(::nl_langinfo_l(CODESET, locale)) == "UTF-8";
  ::freelocale(locale);
  return result;
}

class Terminal final : public Screen {
 public:
  Terminal() {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;  // a stopped process would leave the terminal as it is
    handle(SIGWINCH, note_new_size, 0);
    for (const int signal : kEndingSignals) handle(signal, restore_and_end, SA_RESETHAND);
    (void)::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    write(kEnter);
  }
  ~Terminal() override {
    restore();
    for (const int signal : kEndingSignals) handle(signal, SIG_DFL, 0);
    handle(SIGWINCH, SIG_DFL, 0);
  }

  Size size() const override {
    winsize size{};
    if (!sys::control(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_col == 0 || size.ws_row == 0) return {};
    // What clears the rest of a line would clear its last column, too.
    return {std::max(size.ws_col - 1u, 1u), size.ws_row};
  }
  Look look() const override { return look_; }

  // The cursor goes home, each line is cleared behind its end, and what an earlier, longer view has left is
  // cleared: nothing flickers.
  void show(const std::string& lines) override {
    std::string drawn = "\033[H" + lines;
    if (drawn.ends_with('\n')) drawn.pop_back();  // or the last line of the terminal would scroll
    for (size_t at = 0; (at = drawn.find('\n', at)) != std::string::npos; at += 5)
      drawn.replace(at, 1, "\033[K\r\n");
    write(drawn + "\033[J");
  }

  Pressed key(double seconds) override {
    if (typed_.empty()) {
      pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (::poll(&input, 1, static_cast<int>(seconds * 1000)) <= 0) return {};
      std::array<std::byte, 64> bytes{};
      const Result<size_t> got = sys::read_some(STDIN_FILENO, bytes);
      if (!got && got.error().code == EINTR) return {};
      if (!got || *got == 0) return {Key::kEnd};
      typed_.assign(reinterpret_cast<const char*>(bytes.data()), *got);
    }
    // Several keys may come with one read. An arrow has three bytes; another key's order is left out with all
    // that came behind it.
    const std::string key = typed_.substr(0, typed_[0] == '\033' ? 3 : 1);
    const bool is_up = key == "\033[A" || key == "\033OA", is_down = key == "\033[B" || key == "\033OB";
    typed_.erase(0, key[0] == '\033' && !is_up && !is_down ? std::string::npos : key.size());
    if (is_up || is_down) return {is_up ? Key::kUp : Key::kDown};
    if (key[0] == '\n' || key[0] == '\r') return {Key::kEnter};
    return key[0] == '\033' ? Pressed{} : Pressed{Key::kLetter, key[0]};
  }

 private:
  static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    (void)::sigaction(signal, &action, nullptr);
  }
  static void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
      if (written <= 0) return;
      text.remove_prefix(static_cast<size_t>(written));
    }
  }

  std::string typed_;
  const Look look_{.unicode = has_utf8(), .colour = !is_set("NO_COLOR")};
};

}  // namespace

std::unique_ptr<Screen> open_screen() {
  const char* const kind = std::getenv("TERM");
  if (kind == nullptr || *kind == '\0' || std::string_view(kind) == "dumb") return nullptr;
  if (::isatty(STDOUT_FILENO) == 0 || ::tcgetattr(STDIN_FILENO, &before_) != 0) return nullptr;
  return std::make_unique<Terminal>();
}

}  // namespace kvcachefs
