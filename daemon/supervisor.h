// The process that was started: keeps a serving child, and starts the next when one dies or hangs. The child
// shares its table of descriptors (clone(2), CLONE_FILES), so all that a child has opened is still open when
// it is dead: the connection to the kernel, whose end would be every client's, and what keeps nameless inodes
// alive. Before the next child begins, what nobody has written down (tier/survivors.h) is closed.
// SIGTERM and SIGINT end it, by way of the child; SIGHUP replaces this program by the one that is installed
// now, the child by one of that.
// One thread, which only waits. Failure: what the child exits with; children that die again and again as soon
// as they serve are given up, and so are successors none of whom has come to serve for minutes. One that
// fails leaves everything as it was (std::_Exit, no destructors), for the next to try again.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tier/survivors.h"

namespace kvcachefs {

// One after the other that have served for no more than a moment.
inline constexpr int kMostDeaths = 10;
// Of those that somebody else killed: what it was asked does not do that, a machine short of memory may.
inline constexpr int kMostKillings = 100;

// The exit status of a child that serves and ends so that another begins anew in its place.
inline constexpr int kExitToBeFollowed = 75;

struct Supervision {
  std::vector<int> own_descriptors;           // of this process itself
  std::chrono::seconds hang_after{30};        // a child that has had a request for so long is replaced
  std::chrono::seconds give_up_after{300};    // when no successor has come to serve for so long
  std::function<int()> serve;                 // in the child; its exit status
  std::function<void()> served;               // the first child serves
  std::function<void()> gets_on;              // and goes on serving: several times a second
  std::function<void()> handed_over = [] {};  // a child has ended with kExitToBeFollowed, the next begins
  // When a child is not followed by another.
  std::function<void(const std::string& reason)> give_up;
  // Whether the program that is installed now could go on; the reason if not. Nothing has been stopped.
  std::function<Result<void>()> can_upgrade;
  // Becomes that program, with these descriptors; returns only if that failed.
  std::function<Result<void>(const std::vector<int>& descriptors)> upgrade;
};

// Until a child exits by itself: its exit status.
Result<int> supervise(Survivors& survivors, Supervision supervision);

}  // namespace kvcachefs
