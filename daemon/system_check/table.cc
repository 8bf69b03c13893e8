#include "daemon/system_check/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/key_value.h"

namespace kvcachefs {
namespace {

constexpr size_t kLineColumns = 100;
constexpr size_t kWhatColumns = 24;
constexpr size_t kStateColumns = 9;
constexpr size_t kIndent = kWhatColumns + kStateColumns;

std::string_view name_of(SystemRow::State state) {
  switch (state) {
    case SystemRow::State::kPresent:
      return "present";
    case SystemRow::State::kAbsent:
      return "absent";
    case SystemRow::State::kUnknown:
      break;
  }
  return "unknown";
}

// Appends the text in lines that all begin at `indent`, where the last line of `out` ends already. A word
// that is too long for a line has one for itself.
void append_wrapped(std::string& out, std::string_view text, size_t indent) {
  size_t column = indent;
  for (std::string_view word = take_word(text); !word.empty(); word = take_word(text)) {
    if (column > indent && column + 1 + word.size() > kLineColumns) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  out += '\n';
}

void append_note(std::string& out, std::string_view title, std::string_view text) {
  if (text.empty()) return;
  out += std::string(kIndent, ' ');
  out += title;
  append_wrapped(out, text, kIndent + title.size());
}

std::string names_of(const std::vector<SystemRow>& rows, bool needed) {
  std::vector<std::string_view> names;
  for (const SystemRow& row : rows)
    if (row.state != SystemRow::State::kPresent && row.needed == needed) names.push_back(row.what);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string format_system(const std::vector<SystemRow>& rows, std::string_view release) {
  std::string out = fmt::format("kvcachefs {} on Linux {}\n\n", KVCACHEFS_VERSION, release);
  for (const SystemRow& row : rows) {
    out += fmt::format("{:<{}}{:<{}}", row.what, kWhatColumns, name_of(row.state), kStateColumns);
    append_wrapped(out, row.finding, kIndent);
    if (row.state == SystemRow::State::kPresent) continue;
    append_note(out, "costs:  ", row.cost);
    append_note(out, "remedy: ", row.remedy);
  }
  out += '\n';
  const std::string lacking = names_of(rows, false);
  if (!can_serve(rows))
    append_wrapped(out, "kvcachefs cannot serve like this. It needs: " + names_of(rows, true) + ".", 0);
  else if (lacking.empty())
    append_wrapped(out, "kvcachefs can serve here, with all that it can use.", 0);
  else
    append_wrapped(out, "kvcachefs can serve here, without: " + lacking + ".", 0);
  return out;
}

}  // namespace kvcachefs
