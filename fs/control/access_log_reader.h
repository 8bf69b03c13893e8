// An AccessLogReader is one open of .kvcachefs/access_log: a line for each event (tier/entries/access_log.h)
// from the open on. kvcachefsd(8), ACCESS LOG, has the format. The names are looked up when a line is read,
// so that events need not wait for it. Thread safety: any thread; concurrent reads wait for one another.
// Failure: EMFILE at the open for one reader too many; a name that cannot be found is left out.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"
#include "fs/control/control_file.h"
#include "tier/entries/access_log.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

std::string access_log_header();
std::string render_access(const AccessRecord& record, std::string_view pool, std::string_view name);

class AccessLogReader final : public ControlReader {
 public:
  static Result<std::unique_ptr<ControlReader>> open(Pools& pools);
  AccessLogReader(Pools& pools, AccessLog::Reader reader);

  // Whole lines, unless one alone is longer than `size`.
  std::string read(uint64_t offset, size_t size) override EXCLUDES(mutex_);
  bool is_endless() const override { return true; }
  void follows_another() override EXCLUDES(mutex_);

 private:
  // Where mapped ids are allowed the kernel tells the user of creates alone; of others it is the thread's.
  using Users = std::unordered_map<pid_t, uid_t>;
  std::string line_of(AccessRecord record, Users& users) const;

  Pools& pools_;
  Mutex mutex_;
  AccessLog::Reader reader_ GUARDED_BY(mutex_);
  std::string lines_ GUARDED_BY(mutex_);  // that are not read yet
};

}  // namespace kvcachefs
