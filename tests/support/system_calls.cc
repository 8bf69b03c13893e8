#include "tests/support/system_calls.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>

#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

struct Seen {
  int count = 0;
  std::array<int, 64> each{};
};

// Of the child. The signal's handler has no other way to them.
Seen* seen = nullptr;
const std::function<int(int)>* look_at = nullptr;

void set_result(void* context, int64_t result) {
  mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  machine.gregs[REG_RAX] = result;
#elif defined(__aarch64__)
  machine.regs[0] = static_cast<uint64_t>(result);
#endif
}

void stopped(int, siginfo_t* info, void* context) {
  const int before = errno;
  if (static_cast<size_t>(seen->count) < seen->each.size())
    seen->each[static_cast<size_t>(seen->count++)] = (*look_at)(info->si_syscall);
  set_result(context, 0);
  errno = before;
}

bool stop_at(std::initializer_list<int> kinds) {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = stopped;
  if (::sigaction(SIGSYS, &action, nullptr) != 0) return false;
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const int kind : kinds) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(kind), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

std::vector<int> look_at_calls(std::initializer_list<int> kinds, const std::function<void()>& body,
                               const std::function<int(int)>& look) {
  void* const memory =
      ::mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  if (memory == MAP_FAILED) return {};
  Seen* const shared = new (memory) Seen;
  const int outcome = in_child([&] {
    seen = shared;
    look_at = &look;
    if (!stop_at(kinds)) return 1;
    body();
    return 0;
  });
  EXPECT_EQ(outcome, 0);
  std::vector<int> result(shared->each.begin(), shared->each.begin() + shared->count);
  ::munmap(memory, sizeof(Seen));
  return result;
}

}  // namespace

std::vector<int> at_calls(std::initializer_list<int> kinds, const std::function<void()>& body,
                          const std::function<int()>& look) {
  return look_at_calls(kinds, body, [&](int) { return look(); });
}

std::vector<int> calls_in(std::initializer_list<int> kinds, const std::function<void()>& body) {
  return look_at_calls(kinds, body, [](int call) { return call; });
}

}  // namespace kvcachefs::test
