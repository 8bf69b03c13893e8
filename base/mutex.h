// std::mutex and std::shared_mutex with the attributes clang's thread-safety analysis needs (-Wthread-safety
// in the `clang` preset; g++ ignores them). Any thread. Never fails.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define KVCACHEFS_ATTRIBUTE(x) __attribute__((x))
#else
#define KVCACHEFS_ATTRIBUTE(x)
#endif
#define CAPABILITY(x) KVCACHEFS_ATTRIBUTE(capability(x))
#define SCOPED_CAPABILITY KVCACHEFS_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(x) KVCACHEFS_ATTRIBUTE(guarded_by(x))
#define REQUIRES(...) KVCACHEFS_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) KVCACHEFS_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) KVCACHEFS_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) KVCACHEFS_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) KVCACHEFS_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define ACQUIRED_BEFORE(...) KVCACHEFS_ATTRIBUTE(acquired_before(__VA_ARGS__))
#define RELEASE(...) KVCACHEFS_ATTRIBUTE(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) KVCACHEFS_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define RETURNS_LOCK(x) KVCACHEFS_ATTRIBUTE(lock_returned(x))
#define NO_THREAD_SAFETY_ANALYSIS KVCACHEFS_ATTRIBUTE(no_thread_safety_analysis)

namespace kvcachefs {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

// Readers hold it together, a writer alone.
class CAPABILITY("shared mutex") SharedMutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  void lock_shared() ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~ReaderLock() RELEASE() { mutex_.unlock_shared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

template <class Lockable>
class SCOPED_CAPABILITY LockOf {
 public:
  explicit LockOf(Lockable& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  LockOf(Lockable& mutex, std::adopt_lock_t) REQUIRES(mutex) : mutex_(mutex) {}
  ~LockOf() RELEASE() { mutex_.unlock(); }
  LockOf(const LockOf&) = delete;
  LockOf& operator=(const LockOf&) = delete;

 private:
  Lockable& mutex_;
};
using MutexLock = LockOf<Mutex>;
using WriterLock = LockOf<SharedMutex>;

// A condition variable for Mutex. A wait gives the lock up and holds it again when it returns.
class Condition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  template <class Duration>
  void wait_for(Mutex& mutex, Duration duration) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    condition_.wait_for(lock, duration);
    lock.release();
  }

 private:
  std::condition_variable condition_;
};

// A mutex that those have first who came first. A thread that gives a Mutex up and takes it again at once
// mostly gets it before those who wait, however long they do.
class CAPABILITY("mutex") FairMutex {
 public:
  void lock() ACQUIRE() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t own = next_++;
    condition_.wait(lock, [&] { return own == served_; });
  }
  void unlock() RELEASE() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++served_;
    }
    condition_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  uint64_t next_ = 0, served_ = 0;
};
using FairLock = LockOf<FairMutex>;

}  // namespace kvcachefs
