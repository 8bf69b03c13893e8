// The table of the side-by-side runs, for the terminal, as JSON, and in bench/README.md. One thread; throws
// BenchError if a file cannot be written.
#pragma once

#include <string>
#include <vector>

namespace kvcachefs::bench {

struct Row {
  enum class Bound { kNone, kAtLeast, kAtMost };

  std::string what;
  std::string against;  // empty for a figure that is compared with nothing
  std::string measured;
  std::string reference;  // the result of the other contestant
  double value = 0;       // the ratio, or the figure itself
  Bound bound = Bound::kNone;
  double bound_value = 0;

  bool met() const;
};

class Report {
 public:
  explicit Report(bool quick) : quick_(quick) {}
  // The row is also printed, so that a long run shows how far it is.
  void add(Row row);
  void note(std::string text);  // a sentence below the table
  std::string table() const;    // Markdown
  std::string json() const;
  // The table replaces the text between the lines `<!-- results -->` and `<!-- /results -->`.
  void write_into(const std::string& readme) const;
  size_t missed() const;

 private:
  bool quick_;
  std::vector<Row> rows_;
  std::vector<std::string> notes_;
};

std::string gigabytes(double bytes_a_second);           // `31.2 GB/s`
std::string per_operation(double operations_a_second);  // `17.3 µs`
std::string machine();
void write_text(const std::string& path, const std::string& text);

}  // namespace kvcachefs::bench
