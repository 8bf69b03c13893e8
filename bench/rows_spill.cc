// The disk tier beside fio on a file of the same file system. The rows measure block I/O between the disk and
// the mapped huge pages of a tmpfs file, which is where an entry's bytes lie.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench/fio.h"
#include "bench/rows.h"
#include "tier/disk/uring_block_io.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// The pages of a tmpfs file, all present, as those of a promoted entry are.
class Pages {
 public:
  Pages(const std::string& file, uint64_t bytes) : bytes_(bytes) {
    const UniqueFd fd(
        static_cast<int>(must(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600), "open", file)));
    must(::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)), "fallocate", file);
    at_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    must(at_ == MAP_FAILED ? -1 : 0, "mmap", file);
  }
  ~Pages() { ::munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> part(uint64_t offset, uint64_t bytes) const {
    return std::span(static_cast<std::byte*>(at_), bytes_).subspan(offset, bytes);
  }

 private:
  uint64_t bytes_;
  void* at_ = nullptr;
};

template <class Value>
Value must_have(Result<Value> result) {
  if (!result) throw BenchError(result.error().message);
  return std::move(*result);
}

// The call does the same job through the disk tier's block I/O.
double seam_rate(BlockDevice& device, const Pages& pages, const FioJob& job) {
  const bool write = job.kind == FioJob::Kind::kWrite;
  const auto channel = must_have(device.channel(job.depth));
  std::vector<BlockRequest> requests;
  for (uint64_t offset = 0; offset < job.file_bytes; offset += job.block_bytes)
    requests.push_back({write ? BlockRequest::Kind::kWrite : BlockRequest::Kind::kRead, offset,
                        pages.part(offset, job.block_bytes), offset});
  if (job.kind == FioJob::Kind::kRandomRead) std::ranges::shuffle(requests, std::mt19937_64(now_ns()));
  const uint64_t begin_ns = now_ns();
  channel->submit(requests);
  std::vector<BlockCompletion> completions;
  while (channel->in_flight() > 0) channel->reap(completions, std::chrono::seconds(1));
  if (write) {
    if (auto flushed = device.flush(); !flushed) throw BenchError(flushed.error().message);
  }
  const double measured = rate(job.file_bytes, begin_ns);
  for (const BlockCompletion& completion : completions)
    must(completion.error == 0 ? 0 : -1, "transfer", job.file);
  return measured;
}

}  // namespace

void spill_rows(Bench& bench) {
  using Kind = FioJob::Kind;
  struct Case {
    std::string what;
    Kind kind;
    uint64_t block_bytes;
    unsigned depth;
  };
  const std::vector<Case> cases = {
      {"disk reads of 2 MiB, 8 in flight", Kind::kRead, 2 * kMiB, 8},
      {"disk reads of 32 MiB, 8 in flight", Kind::kRead, 32 * kMiB, 8},
      {"disk reads of 64 KiB, random, 64 in flight", Kind::kRandomRead, 64 * kKiB, 64},
      {"disk writes of 2 MiB, 8 in flight, flush", Kind::kWrite, 2 * kMiB, 8},
      {"disk writes of 32 MiB, 8 in flight, flush", Kind::kWrite, 32 * kMiB, 8}};
  // The amount is at least what the largest blocks have in flight.
  const uint64_t bytes = std::max(bench.scale.working_set_bytes, 256 * kMiB);
  const DiskDirectory disk;
  const std::string ours = disk.make_file("ours", bytes);
  const std::string fios = disk.make_file("fio", bytes);
  const Tmpfs memory(bench.work, "spill-pages", "huge=within_size,size=" + std::to_string(bytes + 64 * kMiB));
  const Pages pages(memory.directory() + "/pages", bytes);
  const auto device =
      must_have(uring_device_on(UniqueFd(::open(ours.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC)), ours));
  for (const Case& one : cases) {
    const FioJob job{one.kind, fios, bytes, one.block_bytes, one.depth, memory.directory() + "/pages"};
    FioJob own_pages = job;
    own_pages.pages.clear();
    const Rates rates = Rates::measure(
        bench.scale.rounds, {[&] { return seam_rate(*device, pages, job); }, [&] { return fio_rate(job); },
                             [&] { return fio_rate(own_pages); }});
    const std::vector<std::string> against = {"fio, huge pages", "fio"};
    for (size_t index = 0; index < against.size(); ++index)
      bench.report.add({one.what, against[index], gigabytes(rates.median_of(0)),
                        gigabytes(rates.median_of(index + 1)), rates.ratio(0, index + 1), Row::Bound::kNone,
                        0});
  }
}

}  // namespace kvcachefs::bench
