// A directory of programs of a test's own, which Mount and run() use while it lives: the daemon that was
// started from there may become another. One thread at a time. Failure: std::filesystem's exceptions.
#pragma once

#include <string>

namespace kvcachefs::test {

class Programs {
 public:
  Programs();
  ~Programs();
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  // The daemon as it was built.
  const std::string& real() const { return real_; }
  // As a package manager does: another file under the name.
  void install(const std::string& script);
  void install_program(const std::string& path);

 private:
  std::string was_, real_, directory_;
};

}  // namespace kvcachefs::test
