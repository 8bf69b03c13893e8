// What came of something that was tried: not tried, it worked, or an errno. Of plain bytes, so that a process
// can hand it to another one. Any thread. Never fails.
#pragma once

#include "base/result.h"

namespace kvcachefs {

class Trial {
 public:
  Trial() = default;  // not tried
  static Trial worked_well() { return Trial(0); }
  static Trial failed_with(int code) { return Trial(code); }
  template <class T>
  static Trial of(const Result<T>& result) {
    return Trial(result ? 0 : result.error().code);
  }

  bool tried() const { return code_ >= 0; }
  bool worked() const { return code_ == 0; }
  bool failed() const { return code_ > 0; }
  int code() const { return failed() ? code_ : 0; }  // the errno of a failure

 private:
  explicit Trial(int code) : code_(code) {}

  int code_ = -1;
};

}  // namespace kvcachefs
