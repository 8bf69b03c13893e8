// What the processes of a soak write down for all of them, in shared memory: how calls ended and how long
// they took, what each client does now, and what went wrong. Any process that was forked from the one that
// made it, any thread. The constructor throws std::runtime_error if there is no memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/soak/calls.h"

namespace kvcachefs::soak {

inline constexpr int kClients = 8;

uint64_t monotonic_ns();

struct CallCounts {
  static constexpr int kErrors = 140;
  std::array<std::atomic<uint64_t>, kErrors> by_error{};
  std::atomic<uint64_t> longest_us{0};
};

struct ClientState {
  std::atomic<uint64_t> call_begun_ns{0};  // 0: none is in hand
  std::atomic<int> call{0};
  std::atomic<const char*> action{""};
  std::atomic<uint64_t> actions{0};
};

struct Tally {
  std::atomic<uint64_t> whole{0};      // entries read and found as they were stored
  std::atomic<uint64_t> misses{0};     // entries that were not there
  std::atomic<uint64_t> bytes{0};      // verified
  std::atomic<uint64_t> own_files{0};  // found as their only writer left them
  std::atomic<uint64_t> deep{0};       // entries read below a path longer than PATH_MAX
};

class Record {
 public:
  Record();
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  void begins(int client, Call call);
  // The call writes a failure down if the error is not documented for it.
  void ends(int client, Call call, int error, std::string_view what);
  // fail() keeps the first failures; with `at_once` the soak ends.
  void fail(std::string_view text, bool at_once);

  bool goes_on() const { return !shared_->over; }
  void end() { shared_->over = true; }
  uint64_t failures() const { return shared_->failures; }
  std::vector<std::string> texts() const;
  // A takeover begins what waits anew, and with it the time that a call may take.
  void takeover_ended() { shared_->serving_since_ns = monotonic_ns(); }
  // How long a client's call has been in hand, since the last takeover; 0 if none is.
  uint64_t waits_ns(int client) const;
  ClientState& client(int number) { return shared_->clients[number]; }
  Tally& tally() { return shared_->tally; }
  // How many orders to resize a pool have begun and ended: odd while one is in hand.
  uint64_t size_orders() const { return shared_->size_orders; }
  void size_order_begins_or_ends() { ++shared_->size_orders; }
  // The calls that ended with errors, and the longest of each kind.
  std::string table() const;

 private:
  static constexpr int kTexts = 24;
  static constexpr size_t kTextBytes = 512;
  struct Shared {
    std::array<CallCounts, kCalls> calls;
    std::array<ClientState, kClients + 1> clients;  // the last one is the sampler
    Tally tally;
    std::atomic<bool> over{false};
    std::atomic<uint64_t> failures{0};
    std::atomic<uint64_t> size_orders{0};
    std::atomic<uint64_t> serving_since_ns{0};
    std::array<std::array<char, kTextBytes>, kTexts> texts{};
  };
  Shared* shared_;
};

}  // namespace kvcachefs::soak
