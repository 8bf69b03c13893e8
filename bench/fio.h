// The speed of the disk itself, measured by fio (io_uring, O_DIRECT, a registered file, fio's own memory) on
// an existing file. One thread; blocks for as long as the job takes. Throws BenchError with fio's output
// where fio is missing or fails.
#pragma once

#include <cstdint>
#include <string>

namespace kvcachefs::bench {

struct FioJob {
  enum class Kind { kRead, kRandomRead, kWrite };  // kWrite ends with an fsync, which is part of the time
  Kind kind = Kind::kRead;
  std::string file;
  uint64_t file_bytes = 0;  // all bytes are moved, once
  uint64_t block_bytes = 0;
  unsigned depth = 0;
  // A file (of a tmpfs with huge pages) of depth * block_bytes whose pages are used as buffers; empty: fio's
  // own 4 KiB pages. On a disk that takes few segments a request the pages decide the speed: 2.7 against 1.0
  // GB/s here.
  std::string pages = {};
};

double fio_rate(const FioJob& job);  // bytes a second

// A DiskDirectory is a directory on a real disk, below $KVCACHEFS_BENCH_DISK or /var/tmp. It is removed with
// its files at the end.
class DiskDirectory {
 public:
  DiskDirectory();
  ~DiskDirectory();
  DiskDirectory(const DiskDirectory&) = delete;
  DiskDirectory& operator=(const DiskDirectory&) = delete;
  const std::string& path() const { return path_; }
  // The file is written with bytes that no disk and no file system can leave out.
  std::string make_file(const std::string& name, uint64_t bytes) const;

 private:
  std::string path_;
};

}  // namespace kvcachefs::bench
