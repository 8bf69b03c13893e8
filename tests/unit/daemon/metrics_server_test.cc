// The listener of `kvcachefs metrics`, asked over sockets of its own machine.
#include "daemon/cli/metrics_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/key_value.h"
#include "base/unique_fd.h"

namespace kvcachefs::metrics_server_test {

// Serves on a thread as long as it lives.
class Serving {
 public:
  explicit Serving(MetricsServer::Limits limits = {}, const char* address = "127.0.0.1:0") {
    auto server = MetricsServer::start(
        *parse_listen_address(address, false),
        [this] { return gone_ ? fail(ENOTCONN, "it is gone") : text_; }, limits);
    if (!server) throw std::runtime_error(server.error().message);
    server_ = std::move(*server);
    is_v6_ = address[0] == '[';
    std::string_view url = server_->url();
    url.remove_suffix(std::string_view("/metrics").size());
    port_ = *number_in<uint16_t>(url.substr(url.rfind(':') + 1));
    thread_ = std::jthread([this](const std::stop_token& stopped) {
      while (!stopped.stop_requested()) server_->step();
    });
  }

  UniqueFd connect() const {
    UniqueFd socket(::socket(is_v6_ ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port_);
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port_);
    v6.sin6_addr = in6addr_loopback;
    const int done = is_v6_ ? ::connect(socket.get(), reinterpret_cast<sockaddr*>(&v6), sizeof v6)
                            : ::connect(socket.get(), reinterpret_cast<sockaddr*>(&v4), sizeof v4);
    EXPECT_EQ(done, 0) << port_;
    return socket;
  }
  static std::string rest(const UniqueFd& socket) {
    std::string all;
    char piece[4096];
    for (ssize_t n; (n = ::recv(socket.get(), piece, sizeof piece, 0)) > 0;)
      all.append(piece, static_cast<size_t>(n));
    return all;
  }
  static void say(const UniqueFd& socket, const std::string& words) {
    EXPECT_EQ(::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
  }
  std::string ask(const std::string& line) const {
    const UniqueFd socket = connect();
    say(socket, line + " HTTP/1.1\r\nHost: here\r\n\r\n");
    return rest(socket);
  }

  std::atomic<bool> gone_ = false;
  Result<std::string> text_ = "kvcachefs_entries{pool=\"p\"} 7\n";

 private:
  std::unique_ptr<MetricsServer> server_;
  bool is_v6_ = false;
  uint16_t port_ = 0;
  std::jthread thread_;
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(MetricsServer, AnswersWithTheText) {
  for (const char* address : {"127.0.0.1:0", "[::1]:0"}) {
    Serving serving({}, address);
    const std::string answer = serving.ask("GET /metrics");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_TRUE(has(answer, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n")) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\nkvcachefs_entries{pool=\"p\"} 7\n")) << answer;
    EXPECT_TRUE(serving.ask("HEAD /metrics").ends_with("\r\n\r\n"));
  }
}

TEST(MetricsServer, RefusesWhatElseIsAsked) {
  Serving serving;
  for (const char* path : {"/", "/metrics/", "/metric", "/../metrics", "/.kvcachefs/stats"}) {
    const std::string answer = serving.ask(std::string("GET ") + path);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 404 ")) << path << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\nthere is /metrics and nothing else\n")) << answer;
  }
  EXPECT_TRUE(serving.ask("GET /metrics?x=1").starts_with("HTTP/1.1 200 "));
  for (const char* verb : {"POST", "PUT", "DELETE", "BREW"}) {
    const std::string answer = serving.ask(std::string(verb) + " /metrics");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 405 ")) << verb << answer;
    EXPECT_TRUE(has(answer, "Allow: GET, HEAD\r\n")) << answer;
  }
}

TEST(MetricsServer, SaysWhenThereIsNothingToRead) {
  Serving serving;
  serving.gone_ = true;
  const std::string answer = serving.ask("GET /metrics");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ")) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\nit is gone\n")) << answer;
  serving.gone_ = false;
  EXPECT_TRUE(serving.ask("GET /metrics").starts_with("HTTP/1.1 200 "));
}

TEST(MetricsServer, RefusesARequestThatIsTooLong) {
  Serving serving;
  const UniqueFd one_header = serving.connect();
  Serving::say(one_header,
               "GET /metrics HTTP/1.1\r\nHost: here\r\nX: " + std::string(17000, 'x') + "\r\n\r\n");
  EXPECT_FALSE(Serving::rest(one_header).starts_with("HTTP/1.1 200"));
  std::string many = "GET /metrics HTTP/1.1\r\nHost: here\r\n";
  while (many.size() < 20000) many += "X: y\r\n";
  const UniqueFd headers = serving.connect();
  Serving::say(headers, many + "\r\n");
  EXPECT_FALSE(Serving::rest(headers).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(serving.ask("GET /metrics").starts_with("HTTP/1.1 200 "));
}

TEST(MetricsServer, ASlowClientHoldsUpNoOther) {
  Serving serving;
  const UniqueFd slow = serving.connect();
  Serving::say(slow, "GET /metr");
  EXPECT_TRUE(serving.ask("GET /metrics").starts_with("HTTP/1.1 200 "));
  Serving::say(slow, "ics HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_TRUE(Serving::rest(slow).starts_with("HTTP/1.1 200 "));
}

// A client that goes on with a byte every now and then is never idle.
TEST(MetricsServer, ARequestHasItsTime) {
  Serving serving({.request_ns = 1'000'000'000});
  const UniqueFd slow = serving.connect();
  Serving::say(slow, "GET /metrics HTTP/1.1\r\nX: ");
  timeval pause{.tv_sec = 0, .tv_usec = 50'000};
  ASSERT_EQ(::setsockopt(slow.get(), SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof pause), 0);
  const uint64_t patience_ns = now_ns() + 60'000'000'000;
  bool closed = false;
  while (!closed && now_ns() < patience_ns) {
    char byte = 'x';
    closed = ::send(slow.get(), &byte, 1, MSG_NOSIGNAL) != 1 || ::recv(slow.get(), &byte, 1, 0) == 0;
  }
  EXPECT_TRUE(closed);
}

TEST(MetricsServer, MoreClientsThanItTakesWaitForNoneThatAnswers) {
  Serving serving({.connections = 4, .request_ns = 1'000'000'000});
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 12; ++i) idle.push_back(serving.connect());
  for (const UniqueFd& client : idle) (void)Serving::rest(client);  // each is closed in time
  EXPECT_TRUE(serving.ask("GET /metrics").starts_with("HTTP/1.1 200 "));
}

// The clients that say nothing come anew as soon as they are turned away.
TEST(MetricsServer, IdleClientsKeepNoOtherFromItsAnswer) {
  Serving serving({.request_ns = 3'600'000'000'000});
  std::vector<UniqueFd> idle;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 400; ++i) idle.push_back(serving.connect());
    EXPECT_TRUE(serving.ask("GET /metrics").starts_with("HTTP/1.1 200 "));
  }
}

// Nor do they end an answer that a client takes its time to read.
TEST(MetricsServer, IdleClientsBreakNoAnswerOff) {
  Serving serving({.request_ns = 3'600'000'000'000});
  serving.text_ = std::string(16 << 20, 'x');
  const UniqueFd slow = serving.connect();
  Serving::say(slow, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
  char first = 0;
  ASSERT_EQ(::recv(slow.get(), &first, 1, 0), 1);  // it has asked
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(serving.connect());
  for (int i = 0; i < 60; ++i) (void)Serving::rest(idle[static_cast<size_t>(i)]);  // they have been ended
  EXPECT_GT(Serving::rest(slow).size(), serving.text_->size());
}

TEST(MetricsServer, SaysThatItCannotListen) {
  Serving serving;
  const auto other = MetricsServer::start(*parse_listen_address("192.0.2.1:9400", true), [] { return "x"; });
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("192.0.2.1:9400: "), std::string::npos) << other.error().message;
}

TEST(ListenAddress, IsThisMachinesAlone) {
  EXPECT_EQ(parse_listen_address("127.0.0.1:9400", false)->port, 9400);
  EXPECT_EQ(parse_listen_address("[::1]:9400", false)->host, "::1");
  EXPECT_TRUE(parse_listen_address("0.0.0.0:9400", true));
  EXPECT_TRUE(parse_listen_address("[2001:db8::1]:1", true));
  for (const char* open : {"0.0.0.0:9400", "[::]:9400", "10.0.0.1:80", "127.0.0.2:80"}) {
    const auto refused = parse_listen_address(open, false);
    ASSERT_FALSE(refused) << open;
    EXPECT_NE(refused.error().message.find("--any-address"), std::string::npos) << refused.error().message;
  }
  for (const char* wrong :
       {"", ":", "9400", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:x",
        "localhost:80", "::1:80", "[127.0.0.1]:80", "[::1:80", "1.2.3:4"}) {
    const auto refused = parse_listen_address(wrong, true);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message.find("is not an address with a port"), std::string::npos);
  }
}

}  // namespace kvcachefs::metrics_server_test
