#include "bench/fio.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "bench/entries.h"
#include "bench/timing.h"

namespace kvcachefs::bench {
namespace {

constexpr int kNotFound = 127;  // the shell's exit status
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

const char* mode_of(FioJob::Kind kind) {
  switch (kind) {
    case FioJob::Kind::kRead:
      return "read";
    case FioJob::Kind::kRandomRead:
      return "randread";
    case FioJob::Kind::kWrite:
      return "write";
  }
  return "";
}

std::string command_of(const FioJob& job) {
  // The caller repeats the job. One job is one pass over the file, each block once, and does not ask what the
  // page cache has.
  return fmt::format(
      "exec fio --name=job '--filename={}' --size={} --rw={} --bs={} --iodepth={} --ioengine=io_uring "
      "--direct=1 "
      "--registerfiles=1 --overwrite=1 --fallocate=none --end_fsync={} '--iomem={}' --output-format=json "
      "2>&1",
      job.file, job.file_bytes, mode_of(job.kind), job.block_bytes, job.depth,
      job.kind == FioJob::Kind::kWrite ? 1 : 0, job.pages.empty() ? "malloc" : "mmapshared:" + job.pages);
}

std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  must(pipe == nullptr ? -1 : 0, "popen", "fio");
  std::string output;
  std::array<char, 4096> piece;
  for (size_t count; (count = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;)
    output.append(piece.data(), count);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound)
    throw BenchError("fio is missing, which the disk is measured with: packaging/setup.sh installs it");
  if (status != 0) throw BenchError(fmt::format("fio failed: {}\n{}", command, output));
  return output;
}

}  // namespace

double fio_rate(const FioJob& job) {
  const std::string output = output_of(command_of(job));
  // Warnings come before the JSON object.
  const auto result =
      nlohmann::json::parse(output.substr(std::min(output.find('{'), output.size())), nullptr, false);
  const auto side =
      nlohmann::json::json_pointer(job.kind == FioJob::Kind::kWrite ? "/jobs/0/write" : "/jobs/0/read");
  if (result.is_discarded() || !result.contains(side))
    throw BenchError("fio said what is no result:\n" + output);
  const auto& measured = result.at(side);
  if (measured.value("io_bytes", uint64_t{0}) != job.file_bytes)
    throw BenchError("fio did not move the whole file:\n" + output);
  return measured.value("bw_bytes", 0.0);
}

DiskDirectory::DiskDirectory() {
  const char* const place = std::getenv("KVCACHEFS_BENCH_DISK");
  path_ = fmt::format("{}/kv-bench-{}-XXXXXX", place != nullptr ? place : "/var/tmp", ::getpid());
  must(::mkdtemp(path_.data()) == nullptr ? -1 : 0, "mkdtemp", path_);
}

DiskDirectory::~DiskDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string DiskDirectory::make_file(const std::string& name, uint64_t bytes) const {
  const std::string path = path_ + "/" + name;
  const UniqueFd fd(
      static_cast<int>(must(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600), "open", path)));
  must(::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)), "fallocate", path);
  const auto piece = payload(kPieceBytes);
  for (uint64_t done = 0; done < bytes; done += piece.size())
    must(::pwrite(fd.get(), piece.data(), std::min<uint64_t>(piece.size(), bytes - done),
                  static_cast<off_t>(done)),
         "write", path);
  must(::fdatasync(fd.get()), "fdatasync", path);
  must(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0 ? 0 : -1, "fadvise", path);
  return path;
}

}  // namespace kvcachefs::bench
