// This program runs as root inside the guest of numa_guest.sh, on a mounted pool, and checks where entries
// lie: by the pool's own report and by a mapping of each entry. One processor for each node is assumed. It
// prints one line for each check and `N of M checks`, and exits with 0 only if all succeeded.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kEntryBytes = 8 * kMiB;
constexpr std::array<int, 2> kNodes = {0, 1};

std::string pool;
int checks = 0;
int held = 0;

void check(bool holds, const std::string& what) {
  ++checks;
  held += holds ? 1 : 0;
  std::printf("%s: %s\n", holds ? "ok" : "FAILED", what.c_str());
  std::fflush(stdout);
}

[[noreturn]] void give_up(const std::string& what) {
  std::printf("FAILED: %s: %s\n", what.c_str(), std::strerror(errno));
  std::printf("%d of %d checks\n", held, checks + 1);
  std::fflush(stdout);
  std::exit(1);
}

// How many bytes lie on each node; `huge` counts those mapped by a PMD.
struct Lies {
  std::array<uint64_t, 2> bytes = {};
  std::array<uint64_t, 2> huge = {};

  void add(const Lies& other) {
    for (const int node : kNodes) {
      bytes[node] += other.bytes[node];
      huge[node] += other.huge[node];
    }
  }
  uint64_t all() const { return bytes[0] + bytes[1]; }
  std::string text() const {
    std::ostringstream out;
    for (const int node : kNodes)
      out << (node == 0 ? "" : ", ") << "node " << node << ": " << bytes[node] / kMiB << " MiB, huge "
          << huge[node] / kMiB;
    return out.str();
  }
};

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void run_on(int cpu) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  if (sched_setaffinity(0, sizeof only, &only) != 0) give_up("sched_setaffinity");
}

// in_process_on() runs `work` in a forked process that is pinned to the processor; false if it failed.
bool in_process_on(int cpu, const std::function<bool()>& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child == 0) {
    run_on(cpu);
    const bool done = work();
    std::fflush(stdout);
    _exit(done ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool write_range(const std::string& name, int flags, uint64_t offset, uint64_t length) {
  static const std::vector<char> piece(kMiB, 'k');
  const int fd = open((pool + "/" + name).c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  bool done = true;
  for (uint64_t at = 0; done && at < length; at += piece.size())
    done = pwrite(fd, piece.data(), piece.size(), static_cast<off_t>(offset + at)) ==
           static_cast<ssize_t>(piece.size());
  return close(fd) == 0 && done;
}

bool store(const std::string& name, uint64_t length = kEntryBytes) {
  if (write_range(name, O_CREAT | O_EXCL | O_WRONLY, 0, length)) return true;
  std::printf("storing %s: %s\n", name.c_str(), std::strerror(errno));
  return false;
}

int node_of_xattr(const std::string& name) {
  std::array<char, 32> text = {};
  if (getxattr((pool + "/" + name).c_str(), "user.kvcachefs.node", text.data(), text.size() - 1) < 0)
    return -1;
  return std::atoi(text.data());
}

uint64_t pmd_mapped_bytes(const void* mapping) {
  std::ifstream maps("/proc/self/smaps");
  std::array<char, 32> begin = {};
  std::snprintf(begin.data(), begin.size(), "%" PRIxPTR "-", reinterpret_cast<uintptr_t>(mapping));
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(begin.data())) ours = true;
    if (!ours || !line.starts_with("ShmemPmdMapped:")) continue;
    return std::strtoull(line.c_str() + sizeof "ShmemPmdMapped:", nullptr, 10) * 1024;
  }
  return 0;
}

// Where the bytes of one entry really lie: the kernel is asked about each page of a mapping.
Lies lies_of(const std::string& name) {
  constexpr uint64_t kHugeBytes = 2 * kMiB;
  const int fd = open((pool + "/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  struct stat attributes = {};
  if (fd < 0 || fstat(fd, &attributes) != 0) give_up("open " + name);
  const auto length = static_cast<uint64_t>(attributes.st_size);
  void* room =
      mmap(nullptr, length + kHugeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char* aligned =
      static_cast<char*>(room) + (kHugeBytes - reinterpret_cast<uintptr_t>(room) % kHugeBytes) % kHugeBytes;
  if (mmap(aligned, length, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != aligned) give_up("mmap " + name);
  close(fd);
  std::vector<void*> pages;
  for (uint64_t at = 0; at < length; at += kPageBytes) {
    (void)*static_cast<volatile char*>(aligned + at);
    pages.push_back(aligned + at);
  }
  std::vector<int> nodes(pages.size(), -1);
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0)
    give_up("move_pages");
  Lies lies;
  for (const int node : nodes) {
    if (node < 0 || node > 1) give_up("move_pages of " + name);
    lies.bytes[node] += kPageBytes;
  }
  // An entry's huge pages count for the node that has most of the entry.
  lies.huge[lies.bytes[1] > lies.bytes[0] ? 1 : 0] = pmd_mapped_bytes(aligned);
  munmap(room, length + kHugeBytes);
  return lies;
}

Lies lies_of_pool_file() {
  Lies lies;
  std::istringstream text(read_all(pool + "/.pool/numa"));
  std::string word;
  for (int node = 0; text >> word >> node && (node == 0 || node == 1);)
    text >> word >> lies.bytes[node] >> word >> lies.huge[node];
  return lies;
}

uint64_t free_bytes_of(int node) {
  const std::string text = read_all("/sys/devices/system/node/node" + std::to_string(node) + "/meminfo");
  const size_t at = text.find("MemFree:");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + 8, nullptr, 10) * 1024;
}

void note_memory(const char* when) {
  std::printf("note: %s: free %" PRIu64 " and %" PRIu64 " MiB; free blocks by order:\n%s", when,
              free_bytes_of(0) / kMiB, free_bytes_of(1) / kMiB, read_all("/proc/buddyinfo").c_str());
}

std::string percent(uint64_t part, uint64_t whole) {
  return std::to_string(whole == 0 ? 0 : part * 100 / whole) + "%";
}

using Names = std::vector<std::string>;

void check_on_node(const Names& names, int node, uint64_t huge_percent_min, const std::string& what) {
  Lies sum;
  int said = 0;
  for (const std::string& name : names) {
    sum.add(lies_of(name));
    said += node_of_xattr(name) == node ? 1 : 0;
  }
  const std::string on = "node " + std::to_string(node);
  check(!names.empty() && sum.bytes[node] == sum.all(),
        what + ": all bytes on " + on + " (" + sum.text() + ")");
  check(said == static_cast<int>(names.size()), what + ": user.kvcachefs.node says so of " +
                                                    std::to_string(said) + " of " +
                                                    std::to_string(names.size()));
  check(sum.huge[node] * 100 >= huge_percent_min * sum.all(),
        what + ": " + percent(sum.huge[node], sum.all()) + " in huge pages, wanted " +
            std::to_string(huge_percent_min) + "%");
}

Names store_on(int cpu, const std::string& prefix, int count, uint64_t length = kEntryBytes) {
  Names names;
  for (int i = 0; i < count; ++i) names.push_back(prefix + std::to_string(i));
  const bool stored = in_process_on(cpu, [&] {
    for (const std::string& name : names)
      if (!store(name, length)) return false;
    return true;
  });
  if (!stored) give_up("storing " + prefix);
  return names;
}

// The first entry of a pool comes before its size is known, and Linux 6.12 and 7.2 give small pages to bytes
// written without a reservation.
void check_preference(Names& all) {
  for (const int node : kNodes) {
    const std::string processor = std::to_string(node);
    const Names first = store_on(node, "first" + processor + "-", 1);
    check_on_node(first, node, node == 0 ? 0 : 99, "first entry of processor " + processor);
    const Names names = store_on(node, "near" + processor + "-", 8);
    check_on_node(names, node, 99, "8 entries of processor " + processor);
    all.insert(all.end(), first.begin(), first.end());
    all.insert(all.end(), names.begin(), names.end());
  }
}

void check_together(Names& all) {
  std::array<Names, 2> names;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  const int cpu = child == 0 ? 1 : 0;
  names[cpu] = store_on(cpu, "together" + std::to_string(cpu) + "-", 8);
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  check(status == 0, "two processes store at once");
  for (int i = 0; i < 8; ++i) names[1].push_back("together1-" + std::to_string(i));
  for (const int node : kNodes) {
    check_on_node(names[node], node, 99,
                  "8 entries of processor " + std::to_string(node) + " beside the other's");
    all.insert(all.end(), names[node].begin(), names[node].end());
  }
}

void check_pool_file(const Names& all) {
  Lies sum;
  for (const std::string& name : all) sum.add(lies_of(name));
  Lies said;  // the first read is an estimate; the daemon's look at all entries follows it
  for (int tries = 0; tries < 300 && (said.bytes != sum.bytes || said.huge != sum.huge); ++tries) {
    said = lies_of_pool_file();
    usleep(100'000);
  }
  check(said.bytes == sum.bytes && said.huge == sum.huge,
        ".pool/numa says " + said.text() + "; seen " + sum.text());
}

// Entries far larger than expected, grown by their writer and by a process of the other node. What they
// outgrow their reservation by comes as the kernel gives it: the daemon changes no file that a client writes.
void check_growth() {
  constexpr uint64_t kLargeBytes = 96 * kMiB;
  for (const int node : kNodes) {
    const Names large = store_on(node, "large" + std::to_string(node) + "-", 1, kLargeBytes);
    check_on_node(large, node, 100 * kEntryBytes / kLargeBytes,
                  "96 MiB by processor " + std::to_string(node));
    unlink((pool + "/" + large[0]).c_str());
    for (const uint64_t length : {kEntryBytes, kLargeBytes}) {
      const Names name = store_on(node, "later" + std::to_string(node) + "-", 1, kMiB);
      const std::string what =
          "grown to " + std::to_string(length / kMiB) + " MiB by processor " + std::to_string(1 - node);
      const bool written =
          in_process_on(1 - node, [&] { return write_range(name[0], O_WRONLY, kMiB, length - kMiB); });
      check(written, what);
      check_on_node(name, node, 0, what);
      unlink((pool + "/" + name[0]).c_str());
    }
  }
}

void check_full_node(int node) {
  const int other = 1 - node;
  constexpr int kEntriesBeyond = 12;
  Names filling;
  Names beyond;
  int failures = 0;
  int mixed = 0;
  Lies near_lies;
  while (beyond.size() < kEntriesBeyond && filling.size() < 160) {
    const std::string name = "fill" + std::to_string(filling.size() + beyond.size());
    if (!in_process_on(node, [&] { return store(name); })) {
      ++failures;
      break;
    }
    if (node_of_xattr(name) == other) {
      beyond.push_back(name);
    } else {
      filling.push_back(name);
    }
  }
  note_memory("a node filled");
  for (const std::string& name : filling) {
    const Lies lies = lies_of(name);
    mixed += lies.bytes[other] > 0 ? 1 : 0;
    near_lies.add(lies);
  }
  check(failures == 0 && beyond.size() == kEntriesBeyond,
        "node " + std::to_string(node) + " takes " + std::to_string(filling.size()) + " entries and node " +
            std::to_string(other) + " the next " + std::to_string(beyond.size()) + ", " +
            std::to_string(failures) + " fail");
  check(mixed == 0, std::to_string(mixed) + " of the entries meant for the filling node reach to the other");
  check(near_lies.huge[node] * 100 >= 90 * near_lies.all(),
        "the filling node's entries: " + percent(near_lies.huge[node], near_lies.all()) + " in huge pages (" +
            near_lies.text() + ")");
  check_on_node(beyond, other, 99, "entries of a full node");
}

uint64_t statistic(const std::string& name) {
  std::istringstream text(read_all(pool + "/.pool/stats"));
  std::string key;
  std::string value;
  while (text >> key >> value)
    if (key == name) return std::strtoull(value.c_str(), nullptr, 10);
  return 0;
}

// Memory that an eviction frees is given out again in huge pages.
void check_turnover(int node) {
  const uint64_t before = statistic("discards");
  Names names = store_on(node, "turnover", 60);
  check(statistic("discards") > before, "60 more entries, of which " +
                                            std::to_string(statistic("discards") - before) +
                                            " make the pool evict one");
  names.erase(names.begin(), names.end() - 20);
  check_on_node(names, node, 99, "the last 20 of them");
}

// Cold entries come back to the node on which they were stored, whichever process reads them.
void check_promotion() {
  constexpr int kEntries = 7;
  std::array<Names, 2> names;
  for (const int node : kNodes) names[node] = store_on(node, "cold" + std::to_string(node) + "-", kEntries);
  for (int tries = 0; statistic("cold_entries") != 2 * kEntries && tries < 300; ++tries) {
    std::ofstream(pool + "/.pool/evict") << "100%";
    usleep(100'000);
  }
  check(statistic("cold_entries") == 2 * kEntries, std::to_string(statistic("cold_entries")) + " of " +
                                                       std::to_string(2 * kEntries) + " entries are cold");
  for (const int node : kNodes) {
    const bool read = in_process_on(1 - node, [&] {
      for (const std::string& name : names[node])
        if (read_all(pool + "/" + name).size() != kEntryBytes) return false;
      return true;
    });
    const std::string what = "cold entries of processor " + std::to_string(node) + ", read by the other";
    check(read, what);
    check_on_node(names[node], node, 90, what);
  }
  check(statistic("promotes") == 2 * kEntries, std::to_string(statistic("promotes")) + " promotions");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  pool = argv[1];
  const std::string io_mode = argv[2];
  run_on(0);
  std::printf("note: %s", read_all("/proc/version").c_str());
  const std::string stats = read_all(pool + "/../.kvcachefs/stats");
  check(stats.find("\nio_mode " + io_mode + "\n") != std::string::npos, "I/O mode is " + io_mode);
  note_memory("at first");
  if (std::string(argv[3]) == "promotion") {
    check_promotion();
  } else {
    Names all;
    check_preference(all);
    check_together(all);
    check_pool_file(all);
    check_growth();
    check_full_node(0);
    check_turnover(1);
  }
  note_memory("at last");
  std::printf("%d of %d checks\n", held, checks);
  return held == checks ? 0 : 1;
}
