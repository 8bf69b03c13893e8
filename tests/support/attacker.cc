#include "tests/support/attacker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <system_error>

#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

using Attack = std::function<int(const std::string& place)>;

constexpr const char* kContainerPlace = "/pool";
// The capabilities that Docker leaves to a container by default: moby's oci/caps/defaults.go.
constexpr int kDockerCapabilities[] = {CAP_CHOWN,   CAP_DAC_OVERRIDE, CAP_FSETID,           CAP_FOWNER,
                                       CAP_MKNOD,   CAP_NET_RAW,      CAP_SETGID,           CAP_SETUID,
                                       CAP_SETFCAP, CAP_SETPCAP,      CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT,
                                       CAP_KILL,    CAP_AUDIT_WRITE};

void must(long result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
}

void become(uid_t uid, gid_t gid) {
  must(::setgroups(0, nullptr), "setgroups");
  must(::setresgid(gid, gid, gid), "setresgid");
  must(::setresuid(uid, uid, uid), "setresuid");
}

void keep_capabilities(uint64_t kept) {
  must(::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear the ambient set");
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    if ((kept >> capability & 1) == 0) must(::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "bounding set");
  }
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[2] = {};
  for (int half = 0; half < 2; ++half) {
    sets[half].effective = sets[half].permitted = static_cast<uint32_t>(kept >> (32 * half));
  }
  must(::syscall(SYS_capset, &header, sets), "capset");
}

// The tmpfs covers /tmp in this mount namespace only, so that no directory must be made for it.
void enter_container(const std::string& directory) {
  must(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "make the mounts private");
  const File pool(directory, O_PATH | O_DIRECTORY);
  const std::string root = "/tmp";
  must(::mount("container", root.c_str(), "tmpfs", 0, "size=16M,mode=755"), "mount the container's root");
  make_directory(root + kContainerPlace);
  make_directory(root + "/proc");
  make_directory(root + "/tmp");
  must(::chmod((root + "/tmp").c_str(), 01777), "chmod /tmp");
  const std::string source = "/proc/self/fd/" + std::to_string(pool.fd());
  must(::mount(source.c_str(), (root + kContainerPlace).c_str(), nullptr, MS_BIND, nullptr), "bind the pool");
  must(::mount("proc", (root + "/proc").c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr),
       "mount /proc");
  must(::chdir(root.c_str()), "chdir");
  must(::syscall(SYS_pivot_root, ".", "."), "pivot_root");
  must(::umount2(".", MNT_DETACH), "leave the host's mounts");
  must(::chdir("/"), "chdir");
}

int first_process(const std::string& directory, uint64_t capabilities, const Attack& attack) {
  try {
    enter_container(directory);
    keep_capabilities(capabilities);
    must(::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "die with the parent");
    return attack(kContainerPlace);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "container: %s\n", error.what());
    return 255;
  }
}

int in_container(const std::string& directory, uint64_t capabilities, const Attack& attack) {
  must(::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS), "unshare");
  const pid_t first = ::fork();
  must(first, "fork");
  if (first == 0) ::_exit(first_process(directory, capabilities, attack));
  int status = 0;
  must(::waitpid(first, &status, 0), "waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void enter_user_namespace(uid_t uid) {
  must(::unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
  const std::string map = "0 " + std::to_string(uid) + " 1";
  errno = write_once("/proc/self/setgroups", "deny");
  if (errno == 0) errno = write_once("/proc/self/uid_map", map);
  if (errno == 0) errno = write_once("/proc/self/gid_map", map);
  must(errno == 0 ? 0 : -1, "map the user namespace's root");
}

int run(Attacker attacker, const std::string& directory, const Attack& attack) {
  uint64_t capabilities = 0;
  switch (attacker) {
    case Attacker::kUser:
      become(kNobody, kNobody);
      break;
    case Attacker::kPoolOwner: {
      struct stat owner {};
      must(::stat(directory.c_str(), &owner), "stat the pool");
      become(owner.st_uid, owner.st_gid);
      break;
    }
    case Attacker::kDockerRoot:
      for (const int capability : kDockerCapabilities) capabilities |= uint64_t{1} << capability;
      [[fallthrough]];
    case Attacker::kContainerRoot:
      return in_container(directory, capabilities, attack);
    case Attacker::kUserNamespaceRoot:
      must(::setgroups(0, nullptr), "setgroups");
      enter_user_namespace(0);
      break;
    case Attacker::kUsersNamespaceRoot:
      become(kNobody, kNobody);
      // Because the process changed its user, it may write its own uid and gid maps only if it is dumpable.
      must(::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl");
      enter_user_namespace(kNobody);
      break;
  }
  return attack(directory);
}

}  // namespace

std::string lacking(Attacker attacker) {
  if (attacker != Attacker::kUserNamespaceRoot && attacker != Attacker::kUsersNamespaceRoot) return "";
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer has a thread in each process, and unshare(2) makes a user namespace for one with none.
  return "a process of one thread";
#endif
  // Sysctls refuse them, a chroot does, and a mount over the root directory.
  const int refusal = in_child([attacker] {
    if (attacker == Attacker::kUsersNamespaceRoot) become(kNobody, kNobody);
    return ::unshare(CLONE_NEWUSER) == 0 ? 0 : errno;
  });
  return refusal == 0 ? "" : fmt::format("user namespaces ({})", error_name(refusal));
}

std::string_view attacker_name(Attacker attacker) {
  switch (attacker) {
    case Attacker::kUser:
      return "a user";
    case Attacker::kPoolOwner:
      return "the pool's owner";
    case Attacker::kContainerRoot:
      return "root of a container";
    case Attacker::kDockerRoot:
      return "root of a Docker container";
    case Attacker::kUserNamespaceRoot:
      return "root of a user namespace";
    case Attacker::kUsersNamespaceRoot:
      return "root of a user's user namespace";
  }
  return "";
}

int attack_as(Attacker attacker, const std::string& directory, const Attack& attack,
              std::chrono::milliseconds deadline) {
  return in_child([&] { return run(attacker, directory, attack); }, deadline);
}

}  // namespace kvcachefs::test
