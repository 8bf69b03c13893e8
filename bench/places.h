// The contestants: mounts of kvcachefs, tmpfs mounts, the minimal passthrough server. A constructor makes one
// below a work directory, and the destructor removes it. One thread; throws BenchError.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvcachefs::bench {

// The directory is /tmp/kv-bench-PID-XXXXXX. It is removed at the end, but never through a mount that could
// not be unmounted. What a benchmark that was killed has left mounted is unmounted by the next one.
class WorkDirectory {
 public:
  WorkDirectory();
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  std::string make(const std::string& name) const;

 private:
  std::string path_;
};

// directory() lies one level below the mount point, as a pool does, so that paths have the same length.
class Tmpfs {
 public:
  Tmpfs(const WorkDirectory& work, const std::string& name, const std::string& options);
  ~Tmpfs();
  Tmpfs(const Tmpfs&) = delete;
  Tmpfs& operator=(const Tmpfs&) = delete;
  const std::string& directory() const { return directory_; }

 private:
  std::string mount_point_;
  std::string directory_;
};

// A Server is a program that serves a mount point until it gets SIGTERM. Its output goes to MOUNTPOINT.log,
// and into the error if the program does not come to serve.
class Server {
 public:
  Server(std::vector<std::string> words, const std::string& mount_point, const std::string& awaited_file);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  pid_t pid() const { return pid_; }

 private:
  void end();

  std::string mount_point_;
  pid_t pid_ = -1;
};

enum class Transport { kDevFuse, kIoUring, kDaemonIo };  // kDaemonIo: /dev/fuse, without passthrough
const char* transport_name(Transport transport);
bool io_uring_offered();

// A Kvcachefs is kvcachefsd with one pool, `p`.
class Kvcachefs {
 public:
  Kvcachefs(const WorkDirectory& work, const std::string& name, const std::string& pool_options,
            Transport transport = Transport::kDevFuse);
  std::string directory() const { return mount_point_ + "/p"; }
  std::string runtime_dir() const { return runtime_dir_; }
  pid_t pid() const { return server_.pid(); }
  std::string control(const std::string& file) const { return directory() + "/.pool/" + file; }
  double pool_stat(const std::string& name) const;
  std::map<std::string, std::string> mount_stats() const;
  // The daemon's memory that is not tmpfs (RssAnon).
  uint64_t private_bytes() const;

 private:
  std::string mount_point_;
  std::string runtime_dir_;
  Server server_;
};

// A MinimalServer is bench/minimal_server: it serves one file, `big`, by passthrough, with as little else as
// libfuse allows.
class MinimalServer {
 public:
  MinimalServer(const WorkDirectory& work, const std::string& name, const std::string& backing_file,
                Transport transport, const std::string& threads);
  std::string file() const { return mount_point_ + "/big"; }
  std::string missing() const { return mount_point_ + "/missing-"; }

 private:
  std::string mount_point_;
  Server server_;
};

std::string read_text(const std::string& path);

}  // namespace kvcachefs::bench
