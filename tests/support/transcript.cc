#include "tests/support/transcript.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace kvcachefs::test {

long Transcript::call(std::string_view what, long result) {
  const int error = error_of(result);
  note(what, error == 0 ? std::to_string(result) : error_name(error));
  return result;
}

void Transcript::note(std::string_view what, std::string_view value) {
  lines_.push_back(std::string(what) + " = " + std::string(value));
}

void Transcript::note(std::string_view what, long value) {
  note(what, std::to_string(value));
}

void Transcript::status(std::string_view what, const std::string& path) {
  struct stat status {};
  const int error = error_of(::lstat(path.c_str(), &status));
  if (error != 0) return note(what, error_name(error));
  char text[160];
  // The size of a directory is left out, because each file system defines it differently.
  const long size = S_ISDIR(status.st_mode) ? 0 : static_cast<long>(status.st_size);
  std::snprintf(text, sizeof(text), "mode %o links %ld owner %u:%u size %ld device %lx", status.st_mode,
                static_cast<long>(status.st_nlink), status.st_uid, status.st_gid, size,
                static_cast<unsigned long>(status.st_rdev));
  note(what, text);
}

void Transcript::content(std::string_view what, const std::string& path) {
  std::string content;
  const int error = load(path, &content);
  if (error != 0) return note(what, error_name(error));
  if (content.size() > 100) {
    const size_t hash = std::hash<std::string>()(content);
    content = std::to_string(content.size()) + " bytes, hash " + std::to_string(hash);
  }
  note(what, content);
}

void Transcript::listing(std::string_view what, const std::string& directory) {
  std::string names;
  for (const std::string& name : list(directory)) names += name + " ";
  note(what, names);
}

void ParityTest::compare(Scenario scenario) {
  static const auto plain = std::make_unique<PlainTmpfs>();
  remove_content(plain->path());
  make_directory(plain->path() + "/d");
  make_directory(path("d"));
  Transcript there;
  scenario(there, plain->path() + "/d");
  Transcript here;
  scenario(here, path("d"));
  ASSERT_FALSE(there.lines().empty() && !HasFailure()) << "the scenario notes nothing";
  const size_t count = std::max(here.lines().size(), there.lines().size());
  for (size_t i = 0; i < count; ++i) {
    const std::string on_mount = i < here.lines().size() ? here.lines()[i] : "(nothing)";
    const std::string on_tmpfs = i < there.lines().size() ? there.lines()[i] : "(nothing)";
    EXPECT_EQ(on_mount, on_tmpfs) << "line " << i << ": first the mount, then the tmpfs";
  }
}

}  // namespace kvcachefs::test
