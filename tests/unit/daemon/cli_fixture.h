// CliTest runs the kvcachefs tool against a directory that looks like a mount. One thread; throws on failure.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/cli/cli.h"
#include "tests/unit/daemon/fake_mount.h"

namespace kvcachefs {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string error;
};

class CliTest : public ::testing::Test {
 protected:
  // run() runs the tool against the fake mount.
  Outcome run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--mount", mount_.root()});
    return run_alone(std::move(arguments));
  }
  Outcome run_alone(std::vector<std::string> arguments) {
    std::vector<const char*> argv{"kvcachefs"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, error;
    const auto wait = [this](double) {
      if (on_wait_) on_wait_();
      return --views_ > 0;
    };
    std::istringstream in(input_);
    Outcome result;
    result.exit_code = run_cli(static_cast<int>(argv.size()), argv.data(),
                               {.in = in,
                                .out = out,
                                .error = error,
                                .mountinfo = mountinfo_,
                                .patience = patience_,
                                .terminal = terminal_,
                                .wait = wait,
                                .serve_metrics = serve_metrics_,
                                .open_screen = open_screen_});
    result.out = out.str();
    result.error = error.str();
    return result;
  }
  void write_mountinfo(const std::string& text) {
    mountinfo_ = mount_.root() / ".mountinfo";
    mount_.write(".mountinfo", text);
  }

  test::FakeMount mount_;
  std::string mountinfo_ = "/dev/null";
  std::chrono::milliseconds patience_ = std::chrono::seconds(40);
  int views_ = 1;
  std::string input_;
  bool terminal_ = false;
  std::function<void()> on_wait_;
  decltype(CliEnvironment::serve_metrics) serve_metrics_;
  decltype(CliEnvironment::open_screen) open_screen_;
};

}  // namespace kvcachefs
