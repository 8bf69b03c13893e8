// attack_as() runs a function as an attacker who is not trusted: another user, a pool's owner, root of a
// container, root of a user namespace. The function runs in a forked process. The namespaces made for that
// process end with it: nothing stays mounted, and the test does not see what the function opens, mounts or
// changes in its own process. The process inherits the test's descriptors, so that a test can pass one to it.
// No program can be executed in a container, because its root has only /pool, /proc and /tmp.
//
// Any thread; needs root with all capabilities. Throws std::system_error if fork(2) fails. The result is the
// function's (0..250), 128 + signal, 255 if the function or a system call before it threw (stderr has the
// exception's text), or -1 if the process was killed at the deadline.
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
  kPoolOwner,      // uid and gid of the directory's owner
  kContainerRoot,  // uid 0 without any capability, in mount, PID, network, IPC and UTS namespaces of its own
  kDockerRoot,     // the same with Docker's default capabilities: CAP_DAC_OVERRIDE, CAP_CHOWN, ...
  kUserNamespaceRoot,   // uid 0 of the host, with all capabilities in a user namespace and none outside
  kUsersNamespaceRoot,  // the same, in a namespace made by kNobody: uid 0 inside is kNobody outside
};

std::string_view attacker_name(Attacker attacker);
// Why there is no such attacker here; empty if there is.
std::string lacking(Attacker attacker);

// `attack` gets the place at which the attacker sees `directory` (a pool or another directory of a mount):
// /pool in a container, `directory` itself elsewhere.
int attack_as(Attacker attacker, const std::string& directory,
              const std::function<int(const std::string& place)>& attack,
              std::chrono::milliseconds deadline = std::chrono::seconds(60));

}  // namespace kvcachefs::test
