// The fixture of tests that ask which entries hold what a prompt needs: entries with metadata, and the
// control files that answer queries. One thread; failures are recorded with GoogleTest.
#pragma once

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {

using Tokens = std::vector<uint32_t>;
inline constexpr size_t kBlock = 16;

inline Tokens sequence(uint32_t first, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::string bytes_of(const Tokens& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint32_t)};
}

struct Answer {
  std::string head;
  std::vector<std::string> lines;
  // The entries' names, in order.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const std::string& line : lines) result.push_back(line.substr(line.rfind('\t') + 1));
    return result;
  }
  std::string value(const std::string& key) const {
    std::istringstream words(head);
    for (std::string word; words >> word;)
      if (word.starts_with(key + "=")) return word.substr(key.size() + 1);
    return {};
  }
};

using Names = std::vector<std::string>;

class MatchTest : public FaultedTierTest {
 protected:
  // An engine sets what it knows on the temporary name.
  void store_with(const std::string& name, const Tokens& tokens,
                  const std::map<std::string, std::string>& xattrs = {}, mode_t mode = 0644) {
    const std::string temporary = path(name + ".tmp");
    write_file(temporary, pattern(1, 4096), mode);
    if (!tokens.empty()) {
      ASSERT_EQ(set_xattr(temporary, "user.kv.tokens", bytes_of(tokens)), 0);
    }
    for (const auto& [key, value] : xattrs)
      ASSERT_EQ(set_xattr(temporary, "user.kv." + key, value), 0) << key;
    ASSERT_EQ(::rename(temporary.c_str(), path(name).c_str()), 0);
  }
  static int ask(const std::string& file, const std::string& query, std::string* text) {
    const File open(file, O_RDWR);
    for (size_t at = 0; at < query.size();) {
      const ssize_t bytes = ::write(open.fd(), query.data() + at, query.size() - at);
      if (bytes <= 0) return errno;
      at += static_cast<size_t>(bytes);
    }
    std::string piece(1 << 16, '\0');
    for (;;) {
      const ssize_t bytes = ::read(open.fd(), piece.data(), piece.size());
      if (bytes < 0) return errno;
      if (bytes == 0) return 0;
      text->append(piece, 0, static_cast<size_t>(bytes));
    }
  }
  static Answer parse(const std::string& text) {
    Answer answer;
    std::istringstream lines(text);
    std::getline(lines, answer.head);
    for (std::string line; std::getline(lines, line);) answer.lines.push_back(line);
    return answer;
  }
  Answer query(const std::string& text) {
    std::string answer;
    EXPECT_EQ(error_name(ask(mount().control("match"), text, &answer)), "ok") << text.substr(0, 100);
    return parse(answer);
  }
  static std::string tokens_query(const Tokens& tokens, const std::string& options = "") {
    std::string text = "tokens " + options + "\n";
    for (const uint32_t token : tokens) text += std::to_string(token) + " ";
    return text;
  }
  Answer match(const Tokens& tokens, const std::string& options = "") {
    return query(tokens_query(tokens, options));
  }
  std::string query_where(const std::string& filter) { return query("where " + filter).value("entries"); }
  void wait_for_index() {
    ASSERT_TRUE(eventually([&] { return match({}).value("index") == "whole"; }));
  }
  // A prompt of 4 blocks, of which a, b and c hold the first three.
  void store_chain() {
    store_with("a", sequence(0, kBlock));
    store_with("b", sequence(100, kBlock), {{"parent", "a"}});
    store_with("c", sequence(200, kBlock), {{"parent", "b"}});
  }
  static Tokens prompt() {
    Tokens tokens = sequence(0, kBlock);
    for (const uint32_t first : {100, 200, 300}) {
      const Tokens more = sequence(first, kBlock);
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    return tokens;
  }
};

}  // namespace kvcachefs::test
