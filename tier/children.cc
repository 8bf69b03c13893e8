#include "tier/children.h"

#include <dirent.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "base/mutex.h"
#include "base/progress.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr unsigned kMostNamed = 10;  // directories named in the log, a minute

// False: at the end.
Result<bool> next_child(DIR* directory, Child& child) {
  for (;;) {
    auto next = sys::next_entry(directory);
    if (!next) return pass(next);
    const dirent* const record = *next;
    if (record == nullptr) return false;
    const std::string_view name(record->d_name);
    if (name == "." || name == "..") continue;
    count_step();
    fault_point("name read");
    child.ino = record->d_ino;
    child.is_regular = record->d_type == DT_REG;
    child.is_directory = record->d_type == DT_DIR;
    child.name = name;
    return true;
  }
}

using Visit = std::function<void(int directory, uint64_t directory_ino, const Child& child)>;

// Reads a tree's names, on one thread at a time, for threads that look at its files.
class TreeReader {
 public:
  TreeReader(const MemoryArena& arena, const Visit& visit_other, Walk walk)
      : arena_(arena), visit_other_(visit_other), walk_(walk), pending_{arena.tree()} {}

  // Any thread: returns when no name is left to be read.
  void visit_files(const Visit& visit) EXCLUDES(mutex_) {
    for (Files files; next(files);)
      for (const Child& file : files.children) {
        count_step();
        visit(::dirfd(files.directory.get()), files.ino, file);
      }
  }
  // When all threads have ended.
  Result<void> outcome() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::move(whole_);
  }

 private:
  // Reading so many names takes some 20 us, and looking at the files some 300.
  static constexpr size_t kFilesAtOnce = 64;

  struct Files {
    std::shared_ptr<DIR> directory;
    uint64_t ino = 0;
    std::vector<Child> children;
  };

  bool next(Files& files) EXCLUDES(mutex_) {
    files.children.clear();
    MutexLock lock(mutex_);
    while (files.children.empty()) {
      if (!directory_ && !open_next()) return false;
      files.directory = directory_;
      files.ino = ino_;
      while (directory_ && files.children.size() < kFilesAtOnce) read_name(files);
    }
    return true;
  }

  bool open_next() REQUIRES(mutex_) {
    while (!directory_ && !pending_.empty()) {
      const sys::Handle next = pending_.back();
      pending_.pop_back();
      auto directory = arena_.open(next, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
      if (!directory) {
        const int code = directory.error().code;  // a link or a pipe is no directory, nor is what has gone
        static LogLimit limit(kMostNamed);
        if (code != ENOTDIR && code != ELOOP && code != ESTALE) {
          limit.error("directory {} cannot be looked through: {}", next.ino, std::strerror(code));
          whole_ = pass(directory);
        }
        continue;
      }
      // A directory's links are its name, its `.` and the `..` of each directory in it.
      if (walk_ == Walk::kNotFiles)
        if (const auto attributes = sys::stat_of(directory->get()); attributes && attributes->st_nlink <= 2)
          continue;
      directory_ = sys::stream_of(std::move(*directory));
      KVCACHEFS_CHECK(directory_ != nullptr);
      ino_ = next.ino;
    }
    return directory_ != nullptr;
  }

  // At the end of the directory, or of what can be read of it, there is none any more.
  void read_name(Files& files) REQUIRES(mutex_) {
    auto read = next_child(directory_.get(), child_);
    if (!read) whole_ = pass(read);
    if (!read || !*read) return directory_.reset();
    if (child_.is_regular) {
      if (walk_ == Walk::kAll) files.children.push_back(child_);
      return;
    }
    const int fd = ::dirfd(directory_.get());
    visit_other_(fd, ino_, child_);
    if (const auto handle = sys::handle_at(fd, child_.name.c_str()))
      pending_.push_back(*handle);
    else if (handle.error().code != ENOENT)
      whole_ = fail(handle.error().code);
  }

  const MemoryArena& arena_;
  const Visit& visit_other_;
  const Walk walk_;
  Mutex mutex_;
  std::shared_ptr<DIR> directory_ GUARDED_BY(mutex_);  // open as long as a thread looks at files in it
  uint64_t ino_ GUARDED_BY(mutex_) = 0;
  Child child_ GUARDED_BY(mutex_);
  std::vector<sys::Handle> pending_ GUARDED_BY(mutex_);
  Result<void> whole_ GUARDED_BY(mutex_);
};

}  // namespace

Result<void> for_each_child(UniqueFd directory, const std::function<void(const Child& child)>& visit) {
  const sys::DirectoryStream stream = sys::stream_of(std::move(directory));
  if (!stream) return fail(ENOMEM);  // its buffer is the only thing that there may be no memory for
  for (Child child;;) {
    auto read = next_child(stream.get(), child);
    if (!read) return pass(read);
    if (!*read) return {};
    visit(child);
  }
}

Result<void> walk_tree(const MemoryArena& arena, const Visit& visit, Walk walk) {
  TreeReader reader(arena, visit, walk);
  reader.visit_files(visit);
  return reader.outcome();
}

Result<void> walk_tree(const MemoryArena& arena, const OnSeveralThreads& on_several_threads,
                       const Visit& visit_other, const Visit& visit_file) {
  TreeReader reader(arena, visit_other, Walk::kAll);
  on_several_threads([&] { reader.visit_files(visit_file); });
  return reader.outcome();
}

}  // namespace kvcachefs
