// The screen of `kvcachefs top` on a terminal: pure functions of what was read, of what was chosen with keys
// and of the terminal's size. Any thread. Never fails. No line is wider than the terminal, and there are at
// most as many as it has.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cli/bars.h"
#include "daemon/cli/histogram_reading.h"
#include "daemon/cli/views.h"

namespace kvcachefs {

// What was read at one time, and what had been read before it.
struct TopReading {
  Sample sample;
  PoolHistograms histograms;
};

// The share of hits among the lookups of each time between two readings; none: there was no lookup.
class HitHistory {
 public:
  void add(const TopReading& now, const TopReading& before);
  std::vector<std::optional<double>> of(std::string_view pool) const;

 private:
  static constexpr size_t kKept = 512;  // columns of a terminal that few have
  std::map<std::string, std::deque<std::optional<double>>, std::less<>> shares_;
};

enum class TopSort { kName, kUsed, kHits, kRate };

struct TopChoice {
  TopSort sort = TopSort::kName;
  std::string pool = {};  // the one under the cursor; empty, or gone: the first
  bool in_detail = false;
};

struct TopScreen {
  const TopReading& now;
  const TopReading* before = nullptr;  // none: rates are means since the daemon's start
  const HitHistory& history;
  TopChoice choice;
  size_t width = 80;
  size_t height = 24;
  Look look;
};

// The names of the pools in the order in which they are shown.
std::vector<std::string> sorted_pools(const TopReading& now, const TopReading* before, TopSort sort);

std::string top_screen(const TopScreen& screen);

}  // namespace kvcachefs
