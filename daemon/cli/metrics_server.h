// A MetricsServer answers GET /metrics over HTTP with a text that is read anew for each request: 503 and one
// line while it cannot be read. One thread, the caller's, which alone calls step(); a client that is slow
// holds up no other. What clients can take is bounded: connections, bytes and time of a request. Where more
// connect, the client leaves that has waited longest without asking.
// Failure: start() fails where it cannot listen, with a sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/cli/listen_address.h"

struct MHD_Connection;
struct MHD_Daemon;

namespace kvcachefs {

class MetricsServer {
 public:
  using Source = std::function<Result<std::string>()>;
  struct Limits {
    unsigned connections = 32;
    size_t request_bytes = 16384;          // what a connection may have of memory for its request
    uint64_t request_ns = 10'000'000'000;  // from its connection to the end of the answer
  };

  static Result<std::unique_ptr<MetricsServer>> start(const ListenAddress& address, Source source,
                                                      Limits limits);
  static Result<std::unique_ptr<MetricsServer>> start(const ListenAddress& address, Source source) {
    return start(address, std::move(source), Limits{});
  }
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  const std::string& url() const { return url_; }
  // Serves what there is to serve, and waits for it, half a second at most.
  void step();

 private:
  struct Callbacks;  // of the library
  struct Open;

  MetricsServer(Source source, Limits limits);

  Source source_;
  Limits limits_;
  std::string url_;
  std::unique_ptr<Open> open_;
  MHD_Daemon* http_ = nullptr;
};

// Serves until the process ends; `serving` is told the URL. Returns only if it cannot listen.
Result<void> serve_metrics(const ListenAddress& address, MetricsServer::Source source,
                           const std::function<void(const std::string& url)>& serving);

}  // namespace kvcachefs
