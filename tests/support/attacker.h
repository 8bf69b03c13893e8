// Runs a function as one who is not trusted: another user, a pool's owner, root of a container, root of a
// user namespace. The function runs in a forked process, in namespaces of its own that go with it: nothing
// stays mounted, and what it opens, mounts or changes of itself the test does not see. Descriptors of the
// test are inherited, so that a test can hand one over. No program can be executed in a container: its root
// is empty but for /pool, /proc and /tmp.
//
// Any thread; needs root with all capabilities (std::system_error where a system call before the function
// fails). The result is the function's (0..250), 128 + signal, 255 if it threw (what it threw is on stderr),
// or -1 after killing it at the deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace kvcachefs::test {

inline constexpr uid_t kNobody = 65534;

enum class Attacker {
  kUser,           // uid and gid kNobody, no other groups
  kPoolOwner,      // uid and gid of whoever owns the directory
  kContainerRoot,  // uid 0 without any capability, in mount, PID, network, IPC and UTS namespaces of its own
  kDockerRoot,     // the same with what Docker leaves by default: CAP_DAC_OVERRIDE, CAP_CHOWN, ...
  kUserNamespaceRoot,   // uid 0, the host's, with all capabilities in a user namespace and none outside of it
  kUsersNamespaceRoot,  // the same made by kNobody, whose uid 0 is kNobody outside
};

std::string_view attacker_name(Attacker attacker);

// `attack` is told where `directory`, a pool or another of a mount, is for it: /pool in a container, its
// usual place elsewhere.
int attack_as(Attacker attacker, const std::string& directory,
              const std::function<int(const std::string& place)>& attack,
              std::chrono::milliseconds deadline = std::chrono::seconds(60));

}  // namespace kvcachefs::test
