// `top`: with keys on a terminal, else one text after the other.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "base/clock.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/screen.h"
#include "daemon/cli/top_view.h"

namespace kvcachefs {
namespace {

double now_s() {
  return static_cast<double>(now_ns()) / 1e9;
}

// The neighbour of the chosen pool in the order shown; there is none beyond the ends.
std::string moved(const std::vector<std::string>& pools, const std::string& chosen, bool down) {
  if (pools.empty()) return {};
  auto at = std::ranges::find(pools, chosen);
  if (at == pools.end()) at = pools.begin();
  if (down && at + 1 != pools.end()) ++at;
  if (!down && at != pools.begin()) --at;
  return *at;
}

void choose_by_letter(TopChoice& choice, char letter) {
  if (letter == 'n') choice.sort = TopSort::kName;
  if (letter == 'u') choice.sort = TopSort::kUsed;
  if (letter == 'h') choice.sort = TopSort::kHits;
  if (letter == 'r') choice.sort = TopSort::kRate;
}

CliResult<TopReading> read_all(const MountTree& tree, const CliEnvironment& environment) {
  TopReading reading;
  CliResult<Sample> sample = take_sample(tree, environment);
  if (!sample) return std::unexpected(sample.error());
  reading.sample = std::move(*sample);
  // An older daemon may have other metrics: then there are no latencies.
  reading.histograms = parse_histograms(tree.read_daemon_file("metrics").value_or(""));
  return reading;
}

CliResult<void> with_keys(const MountTree& tree, const CliArguments& arguments,
                          const CliEnvironment& environment, Screen& screen) {
  HitHistory history;
  TopChoice choice;
  std::optional<TopReading> before;
  for (;;) {
    CliResult<TopReading> now = read_all(tree, environment);
    if (!now) return std::unexpected(now.error());
    const TopReading* const earlier = before ? &*before : nullptr;
    if (earlier != nullptr) history.add(*now, *earlier);
    for (const double until_s = now_s() + arguments.interval_s; now_s() < until_s;) {
      const std::vector<std::string> pools = sorted_pools(*now, earlier, choice.sort);
      if (choice.pool.empty() && !pools.empty()) choice.pool = pools.front();
      const auto [width, height] = screen.size();
      screen.show(top_screen({*now, earlier, history, choice, width, height, screen.look()}));
      const Screen::Pressed pressed = screen.key(std::max(0.0, until_s - now_s()));
      if (pressed.key == Screen::Key::kEnd || pressed.letter == 'q') return {};
      if (pressed.key == Screen::Key::kEnter) choice.in_detail = !choice.in_detail;
      if (pressed.key == Screen::Key::kUp || pressed.key == Screen::Key::kDown)
        choice.pool = moved(pools, choice.pool, pressed.key == Screen::Key::kDown);
      choose_by_letter(choice, pressed.letter);
    }
    before = std::move(*now);
  }
}

}  // namespace

CliResult<void> top(const MountTree& tree, const CliArguments& arguments, const CliEnvironment& environment) {
  if (!arguments.once && environment.open_screen) {
    if (const std::unique_ptr<Screen> screen = environment.open_screen())
      return with_keys(tree, arguments, environment, *screen);
  }
  std::optional<Sample> earlier;
  do {
    CliResult<Sample> sample = take_sample(tree, environment);
    if (!sample) return std::unexpected(sample.error());
    environment.out << (earlier ? "\n" : "") << top_view(*sample, earlier ? &*earlier : nullptr)
                    << std::flush;
    earlier = std::move(*sample);
  } while (!arguments.once && environment.out && environment.pause(arguments.interval_s));
  return {};
}

}  // namespace kvcachefs
