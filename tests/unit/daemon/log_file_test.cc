#include "daemon/log_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/log.h"
#include "tests/support/files.h"

namespace kvcachefs::log_file_test {

TEST(LogFile, IsOneMountsAlone) {
  EXPECT_EQ(log_path("/run/kv", "/mnt/kv"), "/run/kv/mnt-kv.mount.log");
  EXPECT_EQ(log_path("/run/kv", "/mnt"), "/run/kv/mnt.mount.log");
}

TEST(LogFile, BeginsAnewWhenItHasGrown) {
  const std::string directory = "/tmp/kv-log-" + std::to_string(getpid());
  std::filesystem::create_directory(directory);
  const std::string path = directory + "/log";
  const int before = dup(STDERR_FILENO);
  log_to(path);
  for (int i = 0; i < 100; ++i) {
    log_info("line {}", i);
    keep_log_bounded(path, 256);
  }
  log_info("last");
  keep_log_bounded(directory + "/another", 1);
  dup2(before, STDERR_FILENO);
  close(before);
  const std::string now = test::read_file(path);
  EXPECT_LT(now.size(), 300u);
  EXPECT_TRUE(now.ends_with("<6>last\n"));
  const std::string old = test::read_file(path + ".1");
  EXPECT_GE(old.size(), 256u);
  EXPECT_LT(old.size(), 300u);
  EXPECT_FALSE(test::exists(directory + "/another.1"));
  std::filesystem::remove_all(directory);
}

}  // namespace kvcachefs::log_file_test
