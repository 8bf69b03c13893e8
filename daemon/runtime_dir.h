// A mount point's own directory below the runtime directory (0700): where its pools' tmpfs are mounted, and a
// lock that keeps two daemons off one mount point. Main thread. claim() cleans up what a daemon that died
// left there; it fails with EBUSY while another lives. The directory goes with the object.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs {

class RuntimeDir {
 public:
  static Result<RuntimeDir> claim(const std::string& runtime_dir, const std::string& mountpoint);
  // One that this process has claimed already, when it was another program.
  static RuntimeDir keep(const std::string& runtime_dir, const std::string& mountpoint, int lock_fd);
  RuntimeDir(RuntimeDir&&) noexcept = default;
  RuntimeDir& operator=(RuntimeDir&&) = delete;
  ~RuntimeDir();

  int lock_fd() const { return lock_.get(); }
  // Unmounts what a serving process that died has left in it, but for the mount points that are kept.
  void clean_up(const std::vector<std::string>& kept = {}) const;
  const std::string& pools_directory() const { return directory_; }
  // Which pools the serving process is without the disk of, for the supervisor to read: in the file
  // `without_disk`, a name a line, which is there only then.
  void note_pools_without_disk(const std::vector<std::string>& names) const;
  std::vector<std::string> pools_without_disk() const;

 private:
  RuntimeDir(std::string directory, UniqueFd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}

  std::string note() const { return directory_ + "/without_disk"; }

  std::string directory_;
  UniqueFd lock_;
};

}  // namespace kvcachefs
