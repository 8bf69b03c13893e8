#include "bench/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>

#include "bench/places.h"
#include "bench/timing.h"

namespace kvcachefs::bench {
namespace {

constexpr char kBegin[] = "<!-- results -->\n";
constexpr char kEnd[] = "<!-- /results -->";

std::string bound_text(const Row& row) {
  if (row.bound == Row::Bound::kNone) return "";
  return fmt::format("{} {:g}", row.bound == Row::Bound::kAtLeast ? "≥" : "≤", row.bound_value);
}

std::string verdict(const Row& row) {
  if (row.bound == Row::Bound::kNone) return "";
  return row.met() ? "met" : "**missed**";
}

std::string line_of(const Row& row) {
  return fmt::format("| {} | {} | {} | {} | {:.3g} | {} | {} |", row.what, row.against, row.measured,
                     row.reference, row.value, bound_text(row), verdict(row));
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

bool Row::met() const {
  switch (bound) {
    case Bound::kNone:
      return true;
    case Bound::kAtLeast:
      return value >= bound_value;
    case Bound::kAtMost:
      return value <= bound_value;
  }
  return false;
}

void Report::add(Row row) {
  std::printf("%s\n", line_of(row).c_str());
  std::fflush(stdout);
  rows_.push_back(std::move(row));
}

void Report::note(std::string text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  notes_.push_back(std::move(text));
}

std::string Report::table() const {
  std::string text = machine() + (quick_ ? " A quick run: the figures mean nothing.\n\n" : "\n\n");
  text +=
      "| what | against | kvcachefs | the other | ratio or value | bound | "
      "|\n|---|---|---|---|---|---|---|\n";
  for (const Row& row : rows_) text += line_of(row) + "\n";
  for (const std::string& note : notes_) text += "\n" + note + "\n";
  return text;
}

std::string Report::json() const {
  std::string text =
      fmt::format("{{\n  \"machine\": {},\n  \"quick\": {},\n  \"rows\": [", quoted(machine()), quick_);
  for (size_t index = 0; index < rows_.size(); ++index) {
    const Row& row = rows_[index];
    text += fmt::format(
        "{}\n    {{\"what\": {}, \"against\": {}, \"kvcachefs\": {}, \"other\": {}, \"value\": {:.6g}",
        index == 0 ? "" : ",", quoted(row.what), quoted(row.against), quoted(row.measured),
        quoted(row.reference), row.value);
    if (row.bound != Row::Bound::kNone) {
      text +=
          fmt::format(", \"{}\": {:g}, \"met\": {}",
                      row.bound == Row::Bound::kAtLeast ? "at_least" : "at_most", row.bound_value, row.met());
    }
    text += "}";
  }
  text += "\n  ],\n  \"notes\": [";
  for (size_t index = 0; index < notes_.size(); ++index)
    text += (index == 0 ? "" : ", ") + quoted(notes_[index]);
  return text + "]\n}\n";
}

void Report::write_into(const std::string& readme) const {
  const std::string text = read_text(readme);
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    throw BenchError(readme + " has no block between <!-- results --> and <!-- /results -->");
  }
  write_text(readme, text.substr(0, begin) + kBegin + table() + text.substr(end));
}

size_t Report::missed() const {
  return static_cast<size_t>(
      std::count_if(rows_.begin(), rows_.end(), [](const Row& row) { return !row.met(); }));
}

std::string gigabytes(double bytes_a_second) {
  return fmt::format("{:.2f} GB/s", bytes_a_second * 1e-9);
}

std::string per_operation(double operations_a_second) {
  return fmt::format("{:.2f} µs", 1e6 / operations_a_second);
}

std::string machine() {
  std::string model = "unknown processor";
  std::istringstream lines(read_text("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("model name")) model = line.substr(line.find(": ") + 2);
  }
  utsname system{};
  ::uname(&system);
  const std::string release = system.release;
  const uint64_t memory_bytes =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  return fmt::format("{}: {}, {} cores, {} GiB of memory, Linux {}.", date, model,
                     ::sysconf(_SC_NPROCESSORS_ONLN), memory_bytes >> 30,
                     release.substr(0, release.find('-')));
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw BenchError("cannot write " + path);
}

}  // namespace kvcachefs::bench
