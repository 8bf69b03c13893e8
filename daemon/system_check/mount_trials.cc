// try_mounts(): a child process mounts what the daemon would mount, and all of it ends with the child.
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "alloc/memory_arena.h"
#include "alloc/numa_topology.h"
#include "base/key_value.h"
#include "base/mapping.h"
#include "base/sys.h"
#include "base/sys_process.h"
#include "daemon/system_check/gather.h"

namespace kvcachefs {
namespace {

constexpr int kDeadlineMs = 30'000;
constexpr uint64_t kTrialBytes = 16 << 20;
constexpr uint64_t kHugePageBytes = 2 << 20;
static_assert(std::is_trivially_copyable_v<MountTrials>);

// Any existing directory will do, because no other process sees the mounts of this one.
const char* some_directory() {
  for (const char* path : {"/run", "/tmp", "/mnt", "/var"})
    if (sys::open_at(AT_FDCWD, path, O_PATH | O_DIRECTORY)) return path;
  return "/";
}

// Whether the kernel maps a file of one huge page as such. This process maps no other file of a tmpfs.
// `ahead`: allocated beyond the file's size, before it grows, as memory for entries is.
Trial try_huge_page(int directory, const char* name, bool ahead) {
  const auto made = sys::open_at(directory, name, O_RDWR | O_CREAT, 0600);
  if (!made) return Trial::of(made);
  const int file = made->get();
  const auto set_size = [file] { return sys::truncate(file, kHugePageBytes); };
  const auto allocate = [file] { return sys::allocate(file, FALLOC_FL_KEEP_SIZE, 0, kHugePageBytes); };
  auto allocated = ahead ? allocate() : set_size();
  if (allocated) allocated = ahead ? set_size() : allocate();
  if (!allocated) return Trial::of(allocated);
  // One mapping has an address that is a multiple of a huge page, as those of entries have it.
  auto mapped = Mapping::of_file(file, kHugePageBytes, Mapping::Access::kRead);
  if (!mapped) return Trial::of(mapped);
  volatile const auto first = mapped->bytes()[0];
  (void)first;
  const auto text = sys::read_text("/proc/self/smaps_rollup");
  if (!text) return Trial::failed_with(text.error().code);
  std::string_view kibibytes = line_value(*text, "ShmemPmdMapped");
  const auto number = number_in<uint64_t>(take_word(kibibytes));
  return number.value_or(0) > 0 ? Trial::worked_well() : Trial::failed_with(ENOMEM);
}

Trial try_handle(int directory, int file) {
  auto handle = sys::handle_of(file);
  return handle ? Trial::of(sys::open_by_handle(directory, *handle, O_RDWR)) : Trial::of(handle);
}

Trial try_lease(int file) {
  const auto leased = sys::set_lease(file, F_WRLCK);
  if (leased) (void)sys::set_lease(file, F_UNLCK);
  return Trial::of(leased);
}

void try_all(MountTrials& trials) {
  trials.own_mounts = Trial::of(sys::take_own_mounts());
  if (!trials.own_mounts.worked()) return;
  const std::string root = some_directory();
  const auto lack = mount_pool_memory(root, kTrialBytes);
  trials.tmpfs = Trial::of(lack);
  if (!lack) return;
  trials.huge_option = !lack->huge_pages;
  trials.noswap_option = !lack->noswap;
  const auto directory = sys::open_at(AT_FDCWD, root.c_str(), O_RDONLY | O_DIRECTORY);
  const auto file = directory ? sys::open_at(directory->get(), "file", O_RDWR | O_CREAT, 0600)
                              : fail(directory.error().code);
  if (!file) {
    trials.tmpfs = Trial::of(file);
    return;
  }
  trials.handles = try_handle(directory->get(), file->get());
  trials.lease = try_lease(file->get());
  if (trials.huge_option) {
    trials.huge_page = try_huge_page(directory->get(), "sized", false);
    trials.huge_page_ahead = try_huge_page(directory->get(), "ahead", true);
  }
  const auto nodes = NumaTopology::detect();
  if (nodes->node_count() > 1)
    trials.placing = Trial::of(nodes->place_file(file->get(), nodes->node_ids().back()));
  if (sys::make_directory_at(directory->get(), "fuse", 0700))
    trials.fuse = ask_kernel(root + "/fuse", file->get());
}

// What the child writes comes as a whole or not at all: it is smaller than PIPE_BUF.
MountTrials answer_of(int read_end) {
  MountTrials trials;
  pollfd answer{read_end, POLLIN, 0};
  if (poll(&answer, 1, kDeadlineMs) <= 0) {
    trials.own_mounts = Trial::failed_with(ETIMEDOUT);
    return trials;
  }
  std::array<std::byte, sizeof trials> bytes{};
  const auto length = sys::read_some(read_end, bytes);
  if (length && *length == bytes.size())
    std::memcpy(&trials, bytes.data(), bytes.size());
  else
    trials.own_mounts = Trial::failed_with(ECHILD);  // the child has died
  return trials;
}

}  // namespace

MountTrials try_mounts() {
  MountTrials failed;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    failed.own_mounts = Trial::failed_with(EMFILE);
    return failed;
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) {
    failed.own_mounts = Trial::failed_with(EAGAIN);
    return failed;
  }
  if (child == 0) {
    MountTrials trials;
    try_all(trials);
    (void)!write(write_end.get(), &trials, sizeof trials);
    _exit(0);
  }
  write_end.reset();
  const MountTrials trials = answer_of(read_end.get());
  (void)kill(child, SIGKILL);  // it has nothing more to do
  waitpid(child, nullptr, 0);
  return trials;
}

}  // namespace kvcachefs
