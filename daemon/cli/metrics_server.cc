// This is the only user of the HTTP library.
#include "daemon/cli/metrics_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <microhttpd.h>
#include <sys/socket.h>

#include <algorithm>
#include <compare>
#include <map>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr int kLongestWaitMs = 500;  // so late a connection may be closed that took too long

struct SocketAddress {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
};

SocketAddress socket_address(const ListenAddress& address) {
  SocketAddress result;
  result.v4.sin_family = AF_INET;
  result.v4.sin_port = htons(address.port);
  result.v6.sin6_family = AF_INET6;
  result.v6.sin6_port = htons(address.port);
  (void)::inet_pton(AF_INET, address.host.c_str(), &result.v4.sin_addr);
  (void)::inet_pton(AF_INET6, address.host.c_str(), &result.v6.sin6_addr);
  return result;
}

MHD_Result answer(MHD_Connection* connection, unsigned status, std::string text) {
  MHD_Response* const response =
      MHD_create_response_from_buffer(text.size(), text.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(
      response, MHD_HTTP_HEADER_CONTENT_TYPE,
      status == MHD_HTTP_OK ? "text/plain; version=0.0.4; charset=utf-8" : "text/plain; charset=utf-8");
  // A connection has one request, so that its time is the request's.
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  const MHD_Result queued = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return queued;
}

}  // namespace

// The connections that are open, those excluded that have been ended and that the library has yet to close.
struct MetricsServer::Open {
  struct Client {
    bool has_asked = false;
    uint64_t end_ns = 0;  // of its time
    auto operator<=>(const Client&) const = default;
  };
  std::map<MHD_Connection*, Client> clients;

  static void end(MHD_Connection* connection) {
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != nullptr) (void)::shutdown(info->connect_fd, SHUT_RDWR);
  }

  // The client that is new is the last that leaves: it may be about to ask.
  void come(MHD_Connection* connection, uint64_t end_ns, size_t limit) {
    clients[connection] = {.end_ns = end_ns};
    if (clients.size() <= limit) return;
    const auto oldest = std::ranges::min_element(clients, {}, [](const auto& each) { return each.second; });
    end(oldest->first);
    clients.erase(oldest);
  }
  void end_late(uint64_t now) {
    std::erase_if(clients, [now](const auto& each) {
      if (now < each.second.end_ns) return false;
      end(each.first);
      return true;
    });
  }
};

struct MetricsServer::Callbacks {
  static MHD_Result request(void* self, MHD_Connection* connection, const char* url, const char* method,
                            const char*, const char*, size_t*, void**) {
    MetricsServer& server = *static_cast<MetricsServer*>(self);
    if (const auto client = server.open_->clients.find(connection); client != server.open_->clients.end())
      client->second.has_asked = true;
    const std::string_view verb = method;
    if (verb != MHD_HTTP_METHOD_GET && verb != MHD_HTTP_METHOD_HEAD)
      return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
    if (std::string_view(url) != "/metrics")
      return answer(connection, MHD_HTTP_NOT_FOUND, "there is /metrics and nothing else\n");
    Result<std::string> text = server.source_();
    if (!text) return answer(connection, MHD_HTTP_SERVICE_UNAVAILABLE, text.error().message + '\n');
    return answer(connection, MHD_HTTP_OK, std::move(*text));
  }

  static void connection(void* self, MHD_Connection* which, void**, MHD_ConnectionNotificationCode what) {
    MetricsServer& server = *static_cast<MetricsServer*>(self);
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
      server.open_->come(which, now_ns() + server.limits_.request_ns, server.limits_.connections);
    else
      server.open_->clients.erase(which);
  }
};

MetricsServer::MetricsServer(Source source, Limits limits)
    : source_(std::move(source)), limits_(limits), open_(std::make_unique<Open>()) {}

MetricsServer::~MetricsServer() {
  if (http_ != nullptr) MHD_stop_daemon(http_);
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(const ListenAddress& address, Source source,
                                                            Limits limits) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(source), limits));
  const SocketAddress bound = socket_address(address);
  const void* const place = address.is_v6 ? static_cast<const void*>(&bound.v6) : &bound.v4;
  // The library closes a connection in the turn after its end, and takes no new one beyond its own limit.
  // Without a thread of the library's own: step() lends it the caller's.
  server->http_ = MHD_start_daemon(
      MHD_USE_EPOLL | (address.is_v6 ? MHD_USE_IPv6 : MHD_NO_FLAG), address.port, nullptr, nullptr,
      Callbacks::request, server.get(), MHD_OPTION_SOCK_ADDR, place, MHD_OPTION_NOTIFY_CONNECTION,
      Callbacks::connection, server.get(), MHD_OPTION_CONNECTION_LIMIT, 2 * limits.connections,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, limits.request_bytes, MHD_OPTION_CONNECTION_TIMEOUT,
      static_cast<unsigned>(limits.request_ns / 1'000'000'000), MHD_OPTION_END);
  const std::string host = address.is_v6 ? fmt::format("[{}]", address.host) : address.host;
  if (server->http_ == nullptr)
    return std::unexpected(sys::last_error(fmt::format("{}:{}", host, address.port)));
  const MHD_DaemonInfo* const info = MHD_get_daemon_info(server->http_, MHD_DAEMON_INFO_BIND_PORT);
  server->url_ = fmt::format("http://{}:{}/metrics", host, info == nullptr ? address.port : info->port);
  return server;
}

void MetricsServer::step() {
  (void)MHD_run_wait(http_, kLongestWaitMs);
  open_->end_late(now_ns());
}

Result<void> serve_metrics(const ListenAddress& address, MetricsServer::Source source,
                           const std::function<void(const std::string& url)>& serving) {
  auto server = MetricsServer::start(address, std::move(source));
  if (!server) return pass(server);
  serving((*server)->url());
  for (;;) (*server)->step();
}

}  // namespace kvcachefs
