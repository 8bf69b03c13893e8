// Where `kvcachefs metrics --listen` listens: `127.0.0.1:9400` or `[::1]:9400`. Any thread; pure. Fails with
// EINVAL and a sentence that names the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

struct ListenAddress {
  std::string host;   // a number, without brackets
  uint16_t port = 0;  // 0: the kernel chooses one
  bool is_v6 = false;
};

// Whatever is not this machine's own 127.0.0.1 or ::1 is refused, unless `any_address`.
Result<ListenAddress> parse_listen_address(std::string_view text, bool any_address);

}  // namespace kvcachefs
