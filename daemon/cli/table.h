// Text tables for a terminal. Any thread; never fails.
#pragma once

#include <string>
#include <vector>

namespace kvcachefs {

enum class Align { kLeft, kRight };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Each row has one cell for each column; missing cells are empty.
  void add(std::vector<std::string> cells);
  // The text has two spaces between columns and none at the end of a line.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvcachefs
