// SettingOrigins says where the value of a pool's setting comes from, and takes back what was set while the
// pool served. Its implementation (daemon/kept_settings.h) keeps what was set for the next start. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "tier/pool_options.h"

namespace kvcachefs {

class Pools;

class SettingOrigins {
 public:
  enum class Origin : uint8_t { kDefault, kConfigured, kSet };
  // What was set is lost at the next start: it could not be written down, or nothing is to be.
  struct Answer {
    Origin origin = Origin::kDefault;
    bool is_kept = true;
  };

  virtual ~SettingOrigins() = default;
  virtual Answer origin(const PoolOptions& present, std::string_view key) const = 0;
  // What the pool would have if nothing had been set; the defaults for a pool that was made while others
  // served.
  virtual PoolOptions configured(const PoolOptions& present) const = 0;
  // The setting is the configuration's again, or will be at the next start. The pool's present options may
  // have changed by that already. Failure: it could not be written down.
  virtual Result<void> forget(const PoolOptions& present, std::string_view key) = 0;
  // The pool counts as one that the configuration has, with these options; the answer has what was set of it
  // at an earlier time.
  virtual Result<PoolOptions> configure(const PoolOptions& configured) = 0;
  // The pool of that name, for which configure() was called, could not be made.
  virtual void not_made(std::string_view name) = 0;
};

}  // namespace kvcachefs
