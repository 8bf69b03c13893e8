#include "fs/control/queries.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/key_value.h"
#include "base/sys.h"
#include "fs/control/orders.h"
#include "tier/index/entry_index.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kMagic = "KVQ1";  // of a query for tokens in binary form
constexpr std::string_view kForms =
    "`tokens [model=NAME]` and token ids, `names` and a name on each line, or `where KEY=VALUE...`";

EntryIndex& index_of(ControlledPool& target) {
  return target.pool->insight().index();
}

// Whether an answer rests on all entries: asked before the answer is made, and completed after it.
class IndexState {
 public:
  explicit IndexState(ControlledPool& target)
      : target_(target), restoring_(target.pool->disk().restoring()) {}
  std::string_view text() const {
    return restoring_ || index_of(target_).waiting() > 0 ? "building" : "whole";
  }

 private:
  ControlledPool& target_;
  const bool restoring_;
};

Result<ReadableTree> tree_of(ControlledPool& target, const Rights& rights) {
  auto root = target.pool->inodes().open_inode(target.pool->root_ino(), O_PATH | O_DIRECTORY);
  if (!root) return pass(root);
  return ReadableTree(std::move(*root), rights);
}

// What `pin=30s` or `pin=30s,close` asks for: a lease on each entry of the answer.
struct Pin {
  uint64_t until_ms = 0;  // 0: none
  bool until_close = false;
};
constexpr uint64_t kMostPinS = 600;

std::optional<Pin> pin_in(std::string_view text) {
  const bool until_close = text.ends_with(",close");
  if (until_close) text.remove_suffix(6);
  const auto seconds = seconds_in(text);
  if (!seconds || *seconds == 0 || *seconds > kMostPinS) return std::nullopt;
  return Pin{.until_ms = now_coarse_ms() + *seconds * 1000, .until_close = until_close};
}

bool pin(ControlledPool& target, const Pin& wanted, const sys::Handle& entry) {
  const auto holder = wanted.until_close ? target.holder : Lifetimes::kNobody;
  return wanted.until_ms > 0 && target.pool->insight().lifetimes().lease(entry, wanted.until_ms, holder);
}

Result<std::string> match_tokens(ControlledPool& target, ReadableTree& tree, const std::string& model,
                                 const std::vector<uint32_t>& tokens, const Pin& pins = {}) {
  const IndexState state(target);
  const auto pieces = index_of(target).match(
      model, tokens,
      [&tree](const std::string& name, const struct stat& file) { return tree.may_read(name, file); });
  const auto pinned =
      std::ranges::count_if(pieces, [&](const auto& piece) { return pin(target, pins, piece.entry.handle); });
  std::string answer =
      fmt::format("matched_tokens={} query_tokens={} entries={} index={}{}{}\n",
                  pieces.empty() ? 0 : pieces.back().end_token, tokens.size(), pieces.size(), state.text(),
                  pins.until_ms == 0 ? "" : fmt::format(" pinned={}", pinned),
                  tokens.size() < kSimilarBlockTokens
                      ? ""
                      : " prefix_hash=" + prefix_hash_of(std::span(tokens).first<kSimilarBlockTokens>()));
  for (const auto& piece : pieces)
    fmt::format_to(std::back_inserter(answer), "{}\t{}\t{}\t{}\t{}\n", piece.first_token, piece.end_token,
                   tier_name(piece.entry.tier), piece.entry.version, escaped(piece.entry.name, "\\"));
  return answer;
}

std::unexpected<Error> wrong_option(std::string_view word, std::string_view verb, std::string_view others) {
  return fail(EINVAL, fmt::format("'{}' is no option of `{}` ({}pin=TIME or pin=TIME,close, up to {}s)",
                                  word.substr(0, 64), verb, others, kMostPinS));
}

Result<std::vector<uint32_t>> tokens_of(std::string_view ids) {
  std::vector<uint32_t> tokens;
  for (auto word = take_word(ids); !word.empty(); word = take_word(ids)) {
    const auto token = number_in<uint32_t>(word);
    if (!token) return fail(EINVAL, fmt::format("'{}' is no token id", word.substr(0, 32)));
    tokens.push_back(*token);
  }
  return tokens;
}

Result<std::string> answer_tokens(ControlledPool& target, ReadableTree& tree, std::string_view words,
                                  std::string_view ids) {
  std::string model;
  Pin pins;
  for (auto word = take_word(words); !word.empty(); word = take_word(words)) {
    const KeyValue option = split_key_value(word);
    const auto wanted = option.key == "pin" ? pin_in(option.value.value_or("")) : std::nullopt;
    if (!wanted && (option.key != "model" || !option.value))
      return wrong_option(word, "tokens", "model=NAME, ");
    if (wanted)
      pins = *wanted;
    else
      model = *option.value;
  }
  auto tokens = tokens_of(ids);
  return tokens ? match_tokens(target, tree, model, *tokens, pins) : pass(tokens);
}

struct BinaryHead {
  char magic[4];
  uint32_t kind;  // 1: tokens
  uint32_t model_bytes;
  uint32_t tokens;
};

Result<std::string> answer_binary(ControlledPool& target, ReadableTree& tree, std::string_view query) {
  BinaryHead head{};
  if (query.size() < sizeof(head)) return fail(EINVAL, "a binary query ends in its head");
  std::memcpy(&head, query.data(), sizeof(head));
  query.remove_prefix(sizeof(head));
  const uint64_t wanted = uint64_t{head.model_bytes} + uint64_t{head.tokens} * sizeof(uint32_t);
  if (head.kind != 1 || query.size() != wanted)
    return fail(EINVAL, fmt::format("a binary query of kind {} has {} bytes after its head, not {}",
                                    head.kind, query.size(), wanted));
  const std::string model(query.substr(0, head.model_bytes));
  std::vector<uint32_t> tokens(head.tokens);
  std::memcpy(tokens.data(), query.data() + head.model_bytes, tokens.size() * sizeof(uint32_t));
  return match_tokens(target, tree, model, tokens);
}

// How many of the names, from the first on, are entries that are stored; they are told in runs of one tier.
Result<std::string> answer_names(ControlledPool& target, ReadableTree& tree, std::string_view words,
                                 std::string_view names) {
  Pin pins;
  for (auto word = take_word(words); !word.empty(); word = take_word(words)) {
    const KeyValue option = split_key_value(word);
    const auto wanted = option.key == "pin" ? pin_in(option.value.value_or("")) : std::nullopt;
    if (!wanted) return wrong_option(word, "names", "");
    pins = *wanted;
  }
  const IndexState state(target);
  size_t asked = 0, present = 0, run_begin = 0, pinned = 0;
  bool ended = false;
  std::optional<Entry::Tier> run;
  std::string runs;
  const auto end_run = [&](std::optional<Entry::Tier> next) {
    if (run && run != next)
      fmt::format_to(std::back_inserter(runs), "{}\t{}\t{}\n", run_begin, present, tier_name(*run));
    if (run != next) run_begin = present;
    run = next;
  };
  std::string name;
  while (!names.empty()) {
    const std::string_view line = take_part(names, '\n');
    if (line.empty()) continue;
    ++asked;
    if (ended) continue;
    name = line.find('\\') == std::string_view::npos ? std::string(line) : unescaped(line);
    const auto [directory_name, last] = split_name(name);
    // No call can name what is longer, and its directories are opened one below the other.
    const bool is_name = name.size() < PATH_MAX && !name.starts_with('/') && !name.contains('\0');
    const auto directory = is_name ? tree.directory(directory_name) : std::nullopt;
    const auto file = directory && !last.empty() ? sys::stat_at(*directory, last.data()) : fail(ENOENT);
    const auto here = file && S_ISREG(file->st_mode) ? index_of(target).stored(file->st_ino) : std::nullopt;
    const auto tier = here ? std::optional(here->second) : std::nullopt;
    if (here && pins.until_ms > 0 && tree.rights().may_read(*file)) pinned += pin(target, pins, here->first);
    end_run(tier);
    ended = !tier.has_value();
    if (!ended) ++present;
  }
  end_run(std::nullopt);
  return fmt::format("present={} asked={} index={}{}\n{}", present, asked, state.text(),
                     pins.until_ms == 0 ? "" : fmt::format(" pinned={}", pinned), runs);
}

Result<EntryIndex::Filter> filter_in(std::string_view text) {
  const KeyValue filter = split_key_value(text);
  const auto attribute = attribute_named(filter.key);
  if (attribute && filter.value) return std::pair(*attribute, std::string(*filter.value));
  return fail(EINVAL, fmt::format("'{}' is no filter (such as agent=NAME, layer=3)", text.substr(0, 64)));
}

// A value with blanks comes on a line of its own.
Result<std::string> answer_where(ControlledPool& target, ReadableTree& tree, std::string_view words,
                                 std::string_view lines) {
  std::vector<EntryIndex::Filter> filters;
  while (!trimmed(words).empty() || !lines.empty()) {
    const auto text = trimmed(words).empty() ? take_part(lines, '\n') : take_word(words);
    if (text.empty()) continue;
    auto filter = filter_in(text);
    if (!filter) return pass(filter);
    // With two values for one attribute there is no entry to be found.
    if (filters.size() == kAttributes) return fail(EINVAL, "`where` has more filters than attributes");
    filters.push_back(std::move(*filter));
  }
  if (filters.empty()) return fail(EINVAL, "`where` has no filter");
  const IndexState state(target);
  const uint64_t now = now_coarse_ms();
  const auto found = index_of(target).list(
      filters,
      [&tree](const std::string& name, const struct stat& file) { return tree.may_read(name, file); });
  std::string answer = fmt::format("entries={} more={} index={}\n", found.size(),
                                   found.size() == EntryIndex::kMostListed ? "maybe" : "no", state.text());
  for (const auto& [entry, metadata] : found) {
    fmt::format_to(std::back_inserter(answer), "{}\t{}\t{}\t{}\t{}", entry.size_bytes, tier_name(entry.tier),
                   entry.hits, (now - std::min(now, entry.stored_ms)) / 1000, escaped(entry.name, "\\"));
    for (size_t i = 0; i < kAttributes; ++i)
      if (!metadata.attributes[i].empty())
        fmt::format_to(std::back_inserter(answer), "\t{}={}", name_of(static_cast<Attribute>(i)),
                       escaped(metadata.attributes[i], "\\"));
    answer += '\n';
  }
  return answer;
}

}  // namespace

Result<std::string> answer_match(ControlledPool& target, const Rights& rights, std::string_view query) {
  if (query.empty()) return fmt::format("A query is written first: {}.\n", kForms);
  auto readable = tree_of(target, rights);
  if (!readable) return pass(readable);
  ReadableTree& tree = *readable;
  if (query.starts_with(kMagic)) return answer_binary(target, tree, query);
  std::string_view words = take_part(query, '\n');
  const std::string_view verb = take_word(words);
  if (verb == "tokens") return answer_tokens(target, tree, words, query);
  if (verb == "names") return answer_names(target, tree, words, query);
  if (verb == "where") return answer_where(target, tree, words, query);
  return fail(EINVAL, fmt::format("pool {}: a query is {}", target.pool->name(), kForms));
}

namespace {

Result<void> set_option(EntryIndex::SimilarQuery& query, std::string_view word) {
  const KeyValue option = split_key_value(word);
  if (option.value && option.key == "model") return query.model = *option.value, Result<void>();
  if (option.value && option.key == "not_agent") return query.excluded = *option.value, Result<void>();
  const auto number = number_in<uint32_t>(option.value.value_or(""));
  if (number && option.key == "distance" && *number <= SimilarIndex::kMostDistance)
    return query.most_distance = *number, Result<void>();
  if (number && option.key == "most" && *number <= EntryIndex::kMostSimilar)
    return query.most_results = *number, Result<void>();
  return fail(EINVAL, fmt::format("'{}' is no option of `tokens` (model=NAME not_agent=NAME distance=0 to {} "
                                  "most=0 to {})",
                                  word.substr(0, 64), SimilarIndex::kMostDistance, EntryIndex::kMostSimilar));
}

}  // namespace

Result<std::string> answer_similar(ControlledPool& target, const Rights& rights, std::string_view text) {
  if (text.empty()) return "A query is written first: `tokens [model=NAME]` and token ids.\n";
  auto tree = tree_of(target, rights);
  if (!tree) return pass(tree);
  std::string_view words = take_part(text, '\n');
  if (take_word(words) != "tokens")
    return fail(EINVAL,
                fmt::format("pool {}: a query is `tokens [model=NAME]` and token ids", target.pool->name()));
  EntryIndex::SimilarQuery query;
  for (auto word = take_word(words); !word.empty(); word = take_word(words))
    if (auto set = set_option(query, word); !set) return pass(set);
  auto tokens = tokens_of(text);
  if (!tokens) return pass(tokens);
  query.tokens = std::move(*tokens);
  const IndexState state(target);
  const auto found = index_of(target).similar(
      query, [&](const std::string& name, const struct stat& file) { return tree->may_read(name, file); });
  std::string answer =
      fmt::format("blocks={} found={} truncated={} index={}\n", query.tokens.size() / kSimilarBlockTokens,
                  found.blocks.size(), found.truncated, state.text());
  for (const auto& [entry, block, owner] : found.blocks)
    fmt::format_to(std::back_inserter(answer), "{}\t{}\t{}\t{:.4f}\t{}\t{}\t{}\t{}\n", block.query_token,
                   block.token, block.distance, block.confidence(), tier_name(entry.tier), entry.version,
                   owner.empty() ? "-" : escaped(owner, "\\"), escaped(entry.name, "\\"));
  return answer;
}

void OpenQuery::follows_another() {
  MutexLock lock(mutex_);
  is_lost_ = true;
}

Result<void> OpenQuery::add(const std::string& asker, std::string_view text) {
  MutexLock lock(mutex_);
  is_lost_ = false;
  if (std::exchange(answered_, false)) error_ = 0;
  if (query_.empty()) asker_ = asker;
  if (asker != asker_) return fail(EACCES);
  answer_ = {};
  // A query of which a part is lost is none, whatever comes after it.
  if (error_ == 0 && query_.size() + text.size() > kMostQueryBytes) error_ = EMSGSIZE;
  if (error_ == 0 && !memory_.set(query_.size() + text.size())) error_ = EDQUOT;
  if (error_ != 0) return fail(error_);
  query_ += text;
  return {};
}

Result<std::string> OpenQuery::read(const std::string& asker, uint64_t offset, size_t size,
                                    const Answer& answer) {
  MutexLock lock(mutex_);
  if (is_lost_) return fail(ESTALE);
  if (asker_.empty()) asker_ = asker;
  if (asker != asker_) return fail(EACCES);
  if (!std::exchange(answered_, true)) {
    auto text = error_ != 0 ? fail(error_) : answer(query_);
    query_ = {};  // its memory too: an open may stay for long
    (void)memory_.set(0);
    if (text && !memory_.set(text->size())) text = fail(EDQUOT);
    if (!text) {
      error_ = text.error().code;
      return text;
    }
    answer_ = std::move(*text);
    begin_ = offset;
  }
  if (error_ != 0) return fail(error_);
  if (offset < begin_) begin_ = offset;
  const uint64_t from = offset - begin_;
  return from < answer_.size() ? answer_.substr(from, size) : std::string();
}

}  // namespace kvcachefs
