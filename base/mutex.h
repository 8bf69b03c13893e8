// std::mutex with the attributes clang's thread-safety analysis needs (-Wthread-safety in the `clang` preset;
// g++ ignores them). Any thread. Never fails.
#pragma once

#include <condition_variable>
#include <mutex>

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
#define RELEASE(...) KVCACHEFS_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS KVCACHEFS_ATTRIBUTE(no_thread_safety_analysis)

namespace kvcachefs {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

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
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

 private:
  std::condition_variable condition_;
};

}  // namespace kvcachefs
