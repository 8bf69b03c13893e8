#include "base/size.h"

#include <fmt/format.h>

#include <cerrno>
#include <limits>

#include "base/key_value.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kUnits = "KMGTPE";
constexpr uint64_t kMaximum = std::numeric_limits<uint64_t>::max();

std::unexpected<Error> not_a_size(std::string_view text) {
  return fail(EINVAL, fmt::format("'{}' is not a size (such as 512K, 16G or 1.5T)", text));
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// take_unit() removes the unit and answers its factor; 1 without a unit, 0 for an unknown letter.
uint64_t take_unit(std::string_view& text) {
  if (text.empty() || (text.back() >= '0' && text.back() <= '9')) return 1;
  const char letter = static_cast<char>(text.back() & ~0x20);
  const size_t index = kUnits.find(letter);
  if (index == std::string_view::npos) return 0;
  text.remove_suffix(1);
  return uint64_t{1} << (10 * (index + 1));
}

}  // namespace

Result<uint64_t> parse_number(std::string_view text) {
  const auto value = number_in<uint64_t>(text);
  if (!value) return fail(EINVAL, fmt::format("'{}' is not a number", text));
  return *value;
}

Result<uint64_t> parse_size(std::string_view text) {
  std::string_view digits = text;
  const uint64_t unit = take_unit(digits);
  if (unit == 0) return not_a_size(text);

  uint64_t fraction_bytes = 0;
  if (const size_t point = digits.find('.'); point != std::string_view::npos) {
    const std::string_view fraction = digits.substr(point + 1);
    if (unit == 1 || !all_digits(fraction)) return not_a_size(text);
    // The sum runs from the last digit on, so that no value grows past 10 units: 10 * 2^60 still fits.
    for (size_t i = fraction.size(); i-- > 0;) {
      fraction_bytes = (fraction_bytes + static_cast<uint64_t>(fraction[i] - '0') * unit) / 10;
    }
    digits = digits.substr(0, point);
  }
  Result<uint64_t> whole = parse_number(digits);
  if (!whole) return not_a_size(text);
  if (*whole > (kMaximum - fraction_bytes) / unit) {
    return fail(EINVAL, fmt::format("'{}' is too large", text));
  }
  return *whole * unit + fraction_bytes;
}

std::string format_size(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes);
  size_t index = 0;
  while (index + 1 < kUnits.size() && bytes >> (10 * (index + 2)) != 0) ++index;
  const uint64_t unit = uint64_t{1} << (10 * (index + 1));
  uint64_t whole = bytes / unit;
  uint64_t tenths = (bytes % unit * 10 + unit / 2) / unit;
  if (tenths == 10) {
    tenths = 0;
    ++whole;
    if (whole == 1024 && index + 1 < kUnits.size()) {
      whole = 1;
      ++index;
    }
  }
  if (tenths == 0) return fmt::format("{}{}", whole, kUnits[index]);
  return fmt::format("{}.{}{}", whole, tenths, kUnits[index]);
}

std::string format_size_exact(uint64_t bytes) {
  for (size_t index = kUnits.size(); index-- > 0;) {
    const uint64_t unit = uint64_t{1} << (10 * (index + 1));
    if (bytes < unit) continue;
    // Among the tenths of a power of two, only halves are exact.
    if (bytes % unit == 0) return fmt::format("{}{}", bytes / unit, kUnits[index]);
    if (bytes % unit == unit / 2) return fmt::format("{}.5{}", bytes / unit, kUnits[index]);
  }
  return std::to_string(bytes);
}

}  // namespace kvcachefs
