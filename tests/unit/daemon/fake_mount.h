// A directory tree that looks like a mounted kvcachefs, for tests of programs that read a mount. One thread;
// throws on failure.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "base/mountinfo.h"

namespace kvcachefs::test {

class FakeMount {
 public:
  FakeMount() {
    std::string path = std::filesystem::temp_directory_path() / "kv-fake-XXXXXX";
    root_ = ::mkdtemp(path.data());
    std::filesystem::create_directory(root_ / ".kvcachefs");
    write(".kvcachefs/version", "kvcachefs 0.1.0\n");
    write(".kvcachefs/stats",
          "version 0.1.0\nio_mode passthrough\ntransport dev_fuse\nthreads 4\npoll_us 0\npools 2\n"
          "memory_bytes 68719476736\nuptime_s 100\npid 42\n");
    write(".kvcachefs/stats.json", "{\"version\":\"0.1.0\"}\n");
  }
  ~FakeMount() { std::filesystem::remove_all(root_); }
  FakeMount(const FakeMount&) = delete;
  FakeMount& operator=(const FakeMount&) = delete;

  const std::filesystem::path& root() const { return root_; }

  void add_pool(const std::string& name) {
    std::filesystem::create_directories(root_ / name / ".pool");
    write(
        name + "/.pool/stats",
        "size_bytes 17179869184\nused_bytes 13207024435\nfree_bytes 3972844749\nevictable_bytes 11811160064\n"
        "pinned_bytes 536870912\npinned_max_bytes 8589934592\nentries 6120\nmax_entries 10000\nopen_entries "
        "3\n"
        "directories 12\nmax_directories 0\nusers 2\nusers_over 1\nuser_share_bytes 4294967296\npolicy "
        "lru\n"
        "opens_hit 10234\nlookups_missed 121\ncreates 6500\nremoves 380\nevictions 412\ndiscards 412\n"
        "discarded_bytes 25769803776\nreservations 6500\nreservation_waits 12\nreservation_wait_ns 34567890\n"
        "reservation_failures 0\nno_space_errors 0\nevict_orders 1\nentry_size_bytes 2097152\nhuge_bytes "
        "12884901888\n"
        "io_mode passthrough\n");
    write(name + "/.pool/stats.json", "{\"policy\":\"lru\"}\n");
    write(name + "/.pool/size", "16G\n");
    write(name + "/.pool/policy", "lru\n");
    write(name + "/.pool/watermarks", "95:98\n");
    write(name + "/.pool/entry_size", "auto 2M\n");
    write(name + "/.pool/pinned_max", "50%\n");
    write(name + "/.pool/user_share", "25%\n");
    write(name + "/.pool/users",
          "share 4294967296\nuser 1000 bytes 2097152 disk 0 over yes\nuser 7 bytes 4096 disk 1024 over no\n");
    write(name + "/.pool/evict", "");
    write(name + "/.pool/spill", "none\n");
    write(name + "/.pool/durability", "none\n");
    write(name + "/.pool/admission", "all\n");
    write(name + "/.pool/auto_prefetch", "on\n");
  }
  void write(const std::string& file, std::string_view text) { std::ofstream(root_ / file) << text; }
  std::string read(const std::string& file) const {
    std::ifstream in(root_ / file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path root_;
};

inline std::vector<MountPoint> mounts_in(std::string_view mountinfo) {
  FakeMount directory;
  directory.write("mountinfo", mountinfo);
  return read_mounts(directory.root() / "mountinfo").value();
}

}  // namespace kvcachefs::test
