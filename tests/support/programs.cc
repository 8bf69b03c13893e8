#include "tests/support/programs.h"

#include <cstdlib>
#include <filesystem>

#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr const char* kVariable = "KVCACHEFS_BIN_DIR";

}  // namespace

Programs::Programs() : was_(std::getenv(kVariable) ? std::getenv(kVariable) : "") {
  const std::string built = was_.empty() ? KVCACHEFS_BIN_DIR : was_;
  real_ = built + "/kvcachefsd";
  char name[] = "/tmp/kv-programs-XXXXXX";
  directory_ = ::mkdtemp(name);
  for (const char* program : {"kvcachefsd", "kvcachefs"})
    std::filesystem::copy(built + "/" + program, directory_ + "/" + program);
  ::setenv(kVariable, directory_.c_str(), 1);
}

Programs::~Programs() {
  if (was_.empty())
    ::unsetenv(kVariable);
  else
    ::setenv(kVariable, was_.c_str(), 1);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void Programs::install(const std::string& script) {
  write_file(directory_ + "/new", script, 0755);
  std::filesystem::rename(directory_ + "/new", directory_ + "/kvcachefsd");
}

void Programs::install_program(const std::string& path) {
  std::filesystem::copy(path, directory_ + "/new");
  std::filesystem::rename(directory_ + "/new", directory_ + "/kvcachefsd");
}

}  // namespace kvcachefs::test
