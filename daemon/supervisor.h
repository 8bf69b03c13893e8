// The supervisor is the process that was started: it keeps a serving child, and starts the next when one dies
// or hangs. The child shares the supervisor's table of descriptors (clone(2), CLONE_FILES), so everything
// that a child has opened is still open when the child is dead. That includes the connection to the kernel,
// whose end would be an error to every client, and the descriptors that keep nameless inodes alive. Before
// the next child begins, each descriptor that is not written down in Survivors (tier/survivors/survivors.h)
// is closed. SIGTERM and SIGINT are passed to the child, whose end ends the supervisor. SIGHUP replaces this
// program by the one that is installed now, and the child by a child of that program; if the new program ends
// before it serves, this one goes on (daemon/stand_in.h). One thread, which only waits. If the connection was
// aborted, the next child begins with another. Failure: the child's exit status. Children that die again and
// again as soon as they serve are given up, and so is a series of successors of which none comes to serve for
// minutes. A successor that fails leaves everything as it was (std::_Exit, no destructors), for the next one
// to try again.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/stand_in.h"
#include "daemon/succession.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

// The limit of children in a row that died after serving for 50 ms at most.
inline constexpr int kMostDeaths = 10;
// The limit of such children that another process killed. It is higher, because a request does not send
// SIGKILL to the child, but a machine that is short of memory may.
inline constexpr int kMostKillings = 100;

// The exit status of a child that serves and ends so that another child begins in its place.
inline constexpr int kExitToBeFollowed = 75;
// The same, because the connection was aborted: the next child has another.
inline constexpr int kExitAborted = 76;

struct Supervision {
  std::vector<int> own_descriptors;         // of the supervisor itself
  std::chrono::seconds hang_after{30};      // a child that has had a request in hand for so long is
                                            // replaced, and so is one that takes over and makes no step for
                                            // so long (takeover_watch.h)
  std::chrono::seconds give_up_after{300};  // how long successors may fail to come to serve
  StandIn& stand_in;                        // of the program before this one, until the first child serves
  // Runs in the child and returns its exit status.
  std::function<int(pid_t supervisor)> serve;
  std::function<void()> served;   // called when the first child serves
  std::function<void()> gets_on;  // called several times a second after that, unless a child hangs
  // Called between a child's end and the next child. `on_purpose`: the child has ended with
  // kExitToBeFollowed.
  std::function<void(bool on_purpose)> followed = [](bool) {};
  // Called between two children if no child can go on with the connection (daemon/reconnection.h). The next
  // child has another; false: the mount is gone, and the next child only ends in order.
  std::function<bool()> needs_connection = [] { return false; };
  std::function<Result<bool>()> connect = [] { return false; };
  // Called several times a second while there is a child. Returns true if the child has outlived its
  // connection by kEndPatience.
  std::function<bool()> outlives_connection = [] { return false; };
  // Called several times a second while a child serves. Binds dead mounts again.
  std::function<void()> bind_mounts = [] {};
  std::function<void()> stop_binding = [] {};
  // The supervisor calls this when it starts no further child after one has ended.
  std::function<void(const std::string& reason)> give_up;
  // The function says whether the program that is installed now could go on, and if not, why. Serving has not
  // been interrupted for that. EINTR: nothing was found out, because `interrupted`.
  std::function<Result<void>(const Interrupted& interrupted)> can_upgrade;
  // The function makes this process that program, with these descriptors and a stand-in; it returns only if
  // that failed.
  std::function<Result<void>(const std::vector<int>& descriptors, int stand_in_fd)> upgrade;
};

// The call runs until a child exits by itself, and returns that child's exit status.
Result<int> supervise(Survivors& survivors, Supervision supervision);

}  // namespace kvcachefs
