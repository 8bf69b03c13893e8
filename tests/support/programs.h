// A temporary directory of programs, which Mount and run() use while the object lives. A test can replace the
// daemon there after it was started. One thread at a time. Throws the exceptions of std::filesystem.
#pragma once

#include <string>

namespace kvcachefs::test {

class Programs {
 public:
  Programs();
  ~Programs();
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  // The path of the daemon as it was built.
  const std::string& real() const { return real_; }
  // install() replaces the daemon as a package manager does: another file gets the name.
  void install(const std::string& script);
  void install_program(const std::string& path);

 private:
  std::string was_, real_, directory_;
};

}  // namespace kvcachefs::test
