// The requests that the threads of a serving process have in hand, for its successor, which gets the
// unanswered ones again, and for the supervisor, which sees how old they are. Any thread; what concerns a
// request is of the calling thread. Never fails; without a supervisor nothing is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"

namespace kvcachefs {

class Requests {
 public:
  // One place for each thread: enough for the threads of many children, so that the requests of the last few
  // children stay on record.
  static constexpr uint32_t kPlaces = 4096;
  static constexpr uint32_t kRenames = 4096;  // more renames than a client's threads have in hand at once
  static constexpr uint32_t kStales = 256;

  struct InHand {
    std::atomic<uint64_t> unique;
    std::atomic<uint32_t> attempted;
    std::atomic<uint32_t> generation;
    std::atomic<uint64_t> begun_ns;  // 0: the thread waits for a request
  };
  struct Renamed {
    std::atomic<uint64_t> unique;
    uint64_t first_ino, second_ino;
  };
  struct Stale {
    std::atomic<int32_t> thread;
    std::atomic<uint64_t> at_ms;
  };
  struct Shared {
    std::atomic<uint32_t> generation;  // of the child that serves
    std::atomic<uint32_t> threads, renames;
    std::atomic<uint32_t> stale_lost_s;  // when one of `stale` last made room for another
    InHand in_hand[kPlaces];
    Renamed renamed[kRenames];
    Stale stale[kStales];
  };

  explicit Requests(Shared* shared) : shared_(shared) {}  // none: without a supervisor
  // Answers how many children came before this one.
  uint32_t begin_generation() { return shared_ != nullptr ? shared_->generation++ : 0; }

  // The calling thread begins a request. `attempted`: an earlier process attempted it; that stays recorded.
  void begin(uint64_t unique, bool attempted);
  void end();  // the thread waits for its next request
  // The same for a thread that may have no other: its place is for the next thread that needs one. Threads
  // that come and go would take the places of all others in turn.
  void leave() EXCLUDES(mutex_);
  // The thread made progress, or waits with a bound of its own for other threads: its request's age begins
  // anew.
  void still_at_it();
  // The calling thread is about to make the change that the request asks for, and has just checked that the
  // change is possible. (The kernel sends one change of a directory's names or an inode's attributes at a
  // time.) A successor that gets the same request again may find the change done. The thread need not be the
  // one that took the request. `unique` 0: no request, and nothing is recorded.
  void attempt(uint64_t unique);
  bool was_attempted(uint64_t unique) const;
  // The same for a rename, which may be answered after its thread has had other requests. first_ino is the
  // inode of the old name, second_ino that of the new name; 0: the new name was free.
  struct Rename {
    uint64_t unique = 0, first_ino = 0, second_ino = 0;
    uint32_t place = 0;
  };
  // It is on record until it is answered, however many others come meanwhile: rename_answered() is called
  // after the answer, with what attempt_rename() has told the same thread by own_rename(), or with
  // attempted_rename().
  void attempt_rename(uint64_t unique, uint64_t first_ino, uint64_t second_ino);
  std::optional<Rename> attempted_rename(uint64_t unique) const;
  std::optional<Rename> own_rename(uint64_t unique) const;
  void rename_answered(const Rename& rename);
  // told_stale() records that a client's thread was told ESTALE in a call (fs/stale_callers.h),
  // settled_stale() that this call is over; told_stale_lately() lists the threads of the last half minute.
  void told_stale(int32_t thread) EXCLUDES(mutex_);
  void settled_stale(int32_t thread) EXCLUDES(mutex_);
  std::vector<int32_t> told_stale_lately() const;
  bool lost_stale_lately() const;  // there were more of them than could be recorded
  void stale_lost_now();
  // The connection has ended: its requests were answered by the kernel, and those of the next one have the
  // same numbers. No process serves meanwhile.
  void connection_ended();
  // The time when the oldest request in hand of this generation's threads began; 0: no thread has one in
  // hand.
  uint64_t oldest_ns() const;

 private:
  uint32_t own_place() EXCLUDES(mutex_);  // of the calling thread
  uint32_t free_rename_place();
  std::optional<Rename> rename_at(uint32_t place, uint64_t unique) const;

  Shared* const shared_;
  Mutex mutex_;
  std::vector<uint32_t> left_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
