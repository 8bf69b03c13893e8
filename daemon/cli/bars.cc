#include "daemon/cli/bars.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvcachefs {
namespace {

std::string repeated(std::string_view piece, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += piece;
  return result;
}

size_t columns_of(uint64_t part, uint64_t whole, size_t width) {
  if (whole == 0) return 0;
  const double share = std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
  const auto columns = static_cast<size_t>(std::lround(share * static_cast<double>(width)));
  return part > 0 ? std::clamp<size_t>(columns, std::min<size_t>(1, width), width) : 0;
}

}  // namespace

std::string coloured(std::string text, std::string_view colour, Look look) {
  if (!look.colour || text.empty()) return text;
  return fmt::format("\033[{}m{}\033[0m", colour, text);
}

std::string usage_bar(uint64_t pinned, uint64_t used, uint64_t whole, size_t width, Look look) {
  const size_t used_columns = columns_of(used, whole, width);
  const size_t pinned_columns = std::min(columns_of(std::min(pinned, used), whole, width), used_columns);
  const bool nearly_full = whole > 0 && used >= whole - whole / 20;
  return coloured(repeated(look.unicode ? "▓" : "P", pinned_columns), kMagenta, look) +
         coloured(repeated(look.unicode ? "█" : "#", used_columns - pinned_columns),
                  nearly_full ? kYellow : kGreen, look) +
         coloured(repeated(look.unicode ? "░" : ".", width - used_columns), kDim, look);
}

std::string spark_line(std::span<const std::optional<double>> values, size_t width, Look look) {
  static constexpr std::array<std::string_view, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<std::string_view, 8> kLetters{"_", ".", ",", "-", "=", "+", "*", "#"};
  const auto& levels = look.unicode ? kBlocks : kLetters;
  const auto shown = values.last(std::min(values.size(), width));
  std::string result(width - shown.size(), ' ');
  for (const std::optional<double>& value : shown) {
    if (!value)
      result += ' ';
    else
      result += levels[static_cast<size_t>(std::clamp(*value, 0.0, 1.0) * 7 + 0.5)];
  }
  return result;
}

std::string cut(std::string_view text, size_t width) {
  if (text.size() <= width) return std::string(text);
  return width == 0 ? std::string() : std::string(text.substr(0, width - 1)) + '~';
}

std::string fitted(std::string_view text, size_t width) {
  return fmt::format("{:<{}}", cut(text, width), width);
}

std::string fitted_right(std::string_view text, size_t width) {
  return fmt::format("{:>{}}", cut(text, width), width);
}

}  // namespace kvcachefs
