// A mount point's own directory (mode 0700) below the runtime directory. The tmpfs of its pools are mounted
// in it, and a lock on it keeps two daemons off one mount point. Main thread. claim() cleans up what a daemon
// that died left in the directory, and fails with EBUSY while another daemon lives. The directory is removed
// with the object.
#pragma once

#include <string>
#include <vector>

#include "base/mountinfo.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs {

// As systemd escapes paths: `/mnt/kv` is `mnt-kv`.
std::string escape_path(const std::string& path);

// EPERM if another user may change what is in the directory.
Result<void> check_is_ours(const std::string& directory);

class RuntimeDir {
 public:
  // A daemon keeps this directory open as long as it lives.
  static std::string directory_of(const std::string& runtime_dir, const std::string& mountpoint);
  static Result<RuntimeDir> claim(const std::string& runtime_dir, const std::string& mountpoint);
  // The result is a directory that this process claimed already, when it ran another program.
  static RuntimeDir keep(const std::string& runtime_dir, const std::string& mountpoint, int lock_fd);
  // Where the lock of keep() has its directory; `otherwise` if that cannot be known.
  static std::string runtime_dir_of(int lock_fd, const std::string& otherwise);
  RuntimeDir(RuntimeDir&&) noexcept = default;
  RuntimeDir& operator=(RuntimeDir&&) = delete;
  ~RuntimeDir();

  int lock_fd() const { return lock_.get(); }
  // The call unmounts what a serving process that died has left in the directory, except the mount points in
  // `kept`.
  void clean_up(const std::vector<std::string>& kept = {}) const;
  const std::string& pools_directory() const { return directory_; }
  // The names of the pools that the serving process serves without their disk, noted for the supervisor. They
  // are in the file `without_disk`, one name a line; the file exists only if there are any.
  void note_pools_without_disk(const std::vector<std::string>& names) const;
  std::vector<std::string> pools_without_disk() const;
  // The lines of the mount table that are of this device: mounts that are dead, and that another connection's
  // are to replace (daemon/reconnection.h). They are added to those that are noted.
  void note_stale_mounts(const std::string& device) const;
  bool has_stale_mounts() const;
  Result<std::vector<MountPoint>> stale_mounts() const;
  void forget_stale_mounts() const;
  std::string deadly_reads() const { return directory_ + "/deadly_reads"; }  // base/risky_read.h

 private:
  RuntimeDir(std::string directory, UniqueFd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}

  std::string stale_note() const { return directory_ + "/stale_mounts"; }
  std::string note() const { return directory_ + "/without_disk"; }

  std::string directory_;
  UniqueFd lock_;
};

}  // namespace kvcachefs
