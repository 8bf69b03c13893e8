#include "daemon/cli/listen_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>

#include "base/key_value.h"

namespace kvcachefs {

Result<ListenAddress> parse_listen_address(std::string_view text, bool any_address) {
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  const auto port = number_in<uint16_t>(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  const bool is_v6 = host.starts_with('[') && host.ends_with(']');
  if (is_v6) host = host.substr(1, host.size() - 2);
  ListenAddress address{std::string(host), port.value_or(0), is_v6};
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (!port || ::inet_pton(is_v6 ? AF_INET6 : AF_INET, address.host.c_str(), bytes.data()) != 1)
    return fail(EINVAL,
                fmt::format("'{}' is not an address with a port, as 127.0.0.1:9400 or [::1]:9400", text));
  if (!any_address && address.host != "127.0.0.1" && address.host != "::1")
    return fail(EINVAL,
                fmt::format("{} can be reached by others, and nothing asks who they are: --any-address "
                            "listens there all the same",
                            address.host));
  return address;
}

}  // namespace kvcachefs
