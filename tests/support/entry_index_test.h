// The fixture of tests on an EntryIndex over a pool's tree.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/pool_parts.h"
#include "tier/index/entry_index.h"

namespace kvcachefs::test {

using Tokens = std::vector<uint32_t>;
constexpr size_t kTokens = EntryIndex::kBlockTokens;  // of a block

inline std::string bytes_of(const Tokens& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint32_t)};
}

class EntryIndexTest : public PoolPartsTest {
 protected:
  EntryIndexTest() : PoolPartsTest(Upto::kTree) {}
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (IsSkipped()) return;
    index_.emplace(
        *arena_, entries_, [] {}, [](const auto&...) {});
    entries_.observe(*index_);
  }

  void set(const std::string& name, const std::string& key, const std::string& value) {
    ASSERT_TRUE(tree_->set_xattr(ino(name), ("user.kv." + key).c_str(), value, 0));
  }
  // A block of 16 equal tokens for each number.
  static Tokens blocks(const std::vector<uint32_t>& numbers) {
    Tokens tokens;
    for (const uint32_t number : numbers) tokens.insert(tokens.end(), kTokens, number);
    return tokens;
  }
  std::vector<std::string> match(const Tokens& tokens, const std::string& model = "") {
    std::vector<std::string> names;
    for (const auto& piece : index_->match(model, tokens, asker())) names.push_back(piece.entry.name);
    return names;
  }

  using Listed = std::vector<std::pair<EntryIndex::Found, Metadata>>;
  Listed listed(std::span<const EntryIndex::Filter> filters, const EntryIndex::Asker& asker) {
    Listed result;
    index_->list(filters, asker, [&](const auto& found, const auto& metadata) {
      result.emplace_back(found, metadata);
      return true;
    });
    return result;
  }

  // An asker that may read every entry, for one query.
  EntryIndex::Asker asker() { return asker_with(look_); }
  EntryIndex::Asker asker_with(EntryIndex::Look look) {
    work_.emplace([] {}, ended_);
    return {std::move(look), [](const auto&) { return PrefixTree::Whose::kAnothers; }, *work_};
  }

  std::atomic<bool> ended_ = false;
  std::optional<QueryWork> work_;
  const EntryIndex::Look look_ = [this](const std::string& name) {
    return sys::stat_at(arena_->tree_fd(), name.c_str());
  };
  std::optional<EntryIndex> index_;
};

}  // namespace kvcachefs::test
