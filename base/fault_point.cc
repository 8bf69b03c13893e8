#include "base/fault_point.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/sys.h"

namespace kvcachefs {

namespace {

constexpr std::string_view kHang = "hang ";

}  // namespace

const bool fault_points_are_on = std::getenv("KVCACHEFS_FAULT_FILE") != nullptr;

void reached(const char* place, uint64_t number) {
  static const std::string file = std::getenv("KVCACHEFS_FAULT_FILE");
  static const std::string taken = file + ".taken";
  const auto wanted = sys::read_text(file.c_str());
  if (!wanted) return;
  const size_t end = std::min(wanted->find('\n'), wanted->size());
  const bool hangs = wanted->starts_with(kHang);
  const size_t begin = hangs ? kHang.size() : 0;
  const std::string line = wanted->substr(begin, end - begin);
  if (line != (number == 0 ? std::string(place) : fmt::format("{} {}", place, number))) return;
  if (std::rename(file.c_str(), taken.c_str()) != 0) return;  // another thread was first
  log_error("fault point: {}", line);
  if (end + 1 < wanted->size()) {
    std::ofstream(taken, std::ios::trunc) << wanted->substr(end + 1);
    (void)std::rename(taken.c_str(), file.c_str());
  }
  if (hangs)
    for (;;) pause();
  std::abort();
}

}  // namespace kvcachefs
