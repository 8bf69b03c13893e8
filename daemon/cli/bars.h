// Pieces of a screen of text that have a width: bars, lines of small bars, and texts cut to size. Any thread;
// pure. Never fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvcachefs {

struct Look {
  bool unicode = false;  // blocks; else ASCII
  bool colour = false;
};

// Exactly `width` columns: what is pinned, what else is used, and the rest.
std::string usage_bar(uint64_t pinned, uint64_t used, uint64_t whole, size_t width, Look look);
// The last `width` values from 0 to 1, to the right; blank where there is none.
std::string spark_line(std::span<const std::optional<double>> values, size_t width, Look look);
// Exactly `width` columns of a text of ASCII; the end of one that is too long is replaced by a tilde.
std::string fitted(std::string_view text, size_t width);
std::string fitted_right(std::string_view text, size_t width);
std::string cut(std::string_view text, size_t width);  // at most

std::string coloured(std::string text, std::string_view colour, Look look);
inline constexpr std::string_view kBold = "1", kReverse = "7", kGreen = "32", kYellow = "33", kMagenta = "35",
                                  kDim = "2";

}  // namespace kvcachefs
