// A terminal that is drawn on and that gives single keys, as long as a Screen of it lives. Main thread; one
// at a time. The terminal is as it was before when the Screen goes, and also when SIGINT, SIGTERM, SIGHUP or
// SIGQUIT ends the process. Failure: show() and key() do nothing on a terminal that has gone; the signal ends
// them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "daemon/cli/bars.h"

namespace kvcachefs {

class Screen {
 public:
  enum class Key { kNone, kUp, kDown, kEnter, kLetter, kEnd };
  struct Pressed {
    Key key = Key::kNone;
    char letter = 0;
  };
  struct Size {
    size_t width = 80;
    size_t height = 24;
  };

  virtual ~Screen() = default;
  virtual Size size() const = 0;
  virtual Look look() const = 0;
  virtual void show(const std::string& lines) = 0;
  // The next key, or kNone after so many seconds or when the size has changed; kEnd: there will be no more.
  virtual Pressed key(double seconds) = 0;
};

// The terminal of the standard input and output; none: they are not both one, or it is TERM=dumb.
std::unique_ptr<Screen> open_screen();

}  // namespace kvcachefs
