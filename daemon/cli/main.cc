// kvcachefs(1).
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "daemon/cli/cli.h"

int main(int argc, char** argv) {
  const auto wait = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return true;
  };
  return kvcachefs::run_cli(argc, argv,
                            {.in = std::cin,
                             .out = std::cout,
                             .error = std::cerr,
                             .terminal = ::isatty(STDOUT_FILENO) != 0,
                             .wait = wait});
}
