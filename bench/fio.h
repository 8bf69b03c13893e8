// What the disk itself gives: fio (io_uring, O_DIRECT, a registered file, its own memory) over a file that is
// there. One thread; blocks for as long as the job takes. Throws BenchError where fio is missing or fails,
// with what it said.
#pragma once

#include <cstdint>
#include <string>

namespace kvcachefs::bench {

struct FioJob {
  enum class Kind { kRead, kRandomRead, kWrite };  // kWrite ends with an fsync, which counts
  Kind kind = Kind::kRead;
  std::string file;
  uint64_t file_bytes = 0;  // all of them are moved, once
  uint64_t block_bytes = 0;
  unsigned depth = 0;
  // A file (of a tmpfs with huge pages) of depth * block_bytes to move to and from; empty: fio's own 4 KiB
  // pages. On a disk that takes few segments a request, the pages decide: 2.7 against 1.0 GB/s here.
  std::string pages = {};
};

double fio_rate(const FioJob& job);  // bytes a second

// A directory on a real disk: below $KVCACHEFS_BENCH_DISK, or /var/tmp. Gone with its files at the end.
class DiskDirectory {
 public:
  DiskDirectory();
  ~DiskDirectory();
  DiskDirectory(const DiskDirectory&) = delete;
  DiskDirectory& operator=(const DiskDirectory&) = delete;
  const std::string& path() const { return path_; }
  // Written with bytes that no disk and no file system can leave out.
  std::string make_file(const std::string& name, uint64_t bytes) const;

 private:
  std::string path_;
};

}  // namespace kvcachefs::bench
