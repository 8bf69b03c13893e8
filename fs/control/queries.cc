#include "fs/control/queries.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <iterator>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/sys.h"
#include "fs/control/query_forms.h"
#include "tier/index/entry_index.h"

namespace kvcachefs {
namespace {

EntryIndex& index_of(ControlledPool& target) {
  return target.pool->insight().index();
}

// Whether an answer rests on all entries: asked before the answer is made, and completed after it. What it
// was made without may have been read by then.
class IndexState {
 public:
  explicit IndexState(ControlledPool& target)
      : index_(index_of(target)),
        restoring_(target.pool->disk().restoring()),
        cut_short_(index_.cut_short()) {}
  std::string_view text() const {
    const bool is_read = !restoring_ && index_.waiting() == 0 && index_.cut_short() == cut_short_;
    if (!is_read) return "building";
    return index_.usage().missing > 0 ? "part" : "whole";
  }

 private:
  const EntryIndex& index_;
  const bool restoring_;
  const uint64_t cut_short_;
};

Result<UniqueFd> root_of(ControlledPool& target) {
  return target.pool->inodes().open_inode(target.pool->root_ino(), O_PATH | O_DIRECTORY);
}

QueryWork work_for(ControlledPool& target) {
  static const std::atomic<bool> never = false;
  return index_of(target).work_until(target.queries_end != nullptr ? *target.queries_end : never);
}

EntryIndex::Asker asker_in(ReadableTree& tree) {
  return {[&tree](const std::string& name) { return tree.readable(name); },
          [&rights = tree.rights()](const PrefixTree::Access& access) {
            struct stat file {};
            file.st_uid = access.user;
            file.st_gid = access.group;
            file.st_mode = S_IFREG | access.mode;
            if (!rights.may_read(file)) return PrefixTree::Whose::kUnreadable;
            return rights.is(access.user) ? PrefixTree::Whose::kOwn : PrefixTree::Whose::kAnothers;
          },
          tree.work()};
}

std::string_view told_if_cut(ReadableTree& tree) {
  return tree.work().is_cut() ? " more=maybe" : "";
}

// What is left of an answer when queries are to stop is none.
Result<std::string> unless_ended(const QueryWork& work, Result<std::string> answer) {
  return work.is_cut() && work.has_ended() ? fail(ENOTCONN) : std::move(answer);
}

std::unexpected<Error> wrong_query(ControlledPool& target, const Error& why) {
  return fail(why.code, fmt::format("pool {}: {}", target.pool->name(), why.message));
}

bool pin(ControlledPool& target, const Pin& wanted, const sys::Handle& entry) {
  const auto holder = wanted.until_close ? target.holder : Lifetimes::kNobody;
  const uint64_t until_ms = now_coarse_ms() + uint64_t{wanted.seconds} * 1000;
  return wanted.seconds > 0 && target.pool->insight().lifetimes().lease(entry, until_ms, holder);
}

Result<std::string> match_tokens(ControlledPool& target, ReadableTree& tree, const TokensQuery& query) {
  const auto& tokens = query.tokens;
  const IndexState state(target);
  const auto pieces = index_of(target).match(query.model, tokens, asker_in(tree));
  const auto pinned = std::ranges::count_if(
      pieces, [&](const auto& piece) { return pin(target, query.pin, piece.entry.handle); });
  std::string answer =
      fmt::format("matched_tokens={} query_tokens={} entries={} index={}{}{}{}\n",
                  pieces.empty() ? 0 : pieces.back().end_token, tokens.size(), pieces.size(), state.text(),
                  told_if_cut(tree), query.pin.seconds == 0 ? "" : fmt::format(" pinned={}", pinned),
                  tokens.size() < kSimilarBlockTokens
                      ? ""
                      : " prefix_hash=" + prefix_hash_of(std::span(tokens).first<kSimilarBlockTokens>()));
  for (const auto& piece : pieces)
    fmt::format_to(std::back_inserter(answer), "{}\t{}\t{}\t{}\t{}\n", piece.first_token, piece.end_token,
                   tier_name(piece.entry.tier), piece.entry.version, escaped(piece.entry.name, "\\"));
  return answer;
}

// How many of the names, from the first on, are entries that are stored; they are told in runs of one tier.
Result<std::string> answer_names(ControlledPool& target, ReadableTree& tree, std::string_view names,
                                 const Pin& pins) {
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
  while (const auto line = take_name(names)) {
    ++asked;
    if (ended) continue;
    name = line->find('\\') == std::string_view::npos ? std::string(*line) : unescaped(*line);
    // No call can name what is longer, and its directories are opened one below the other.
    const bool is_name = name.size() < PATH_MAX && !name.starts_with('/') && !name.contains('\0');
    const auto file = is_name ? tree.file_at(name) : std::nullopt;
    auto here = file ? index_of(target).stored(*file) : std::nullopt;
    // It may have been replaced since the directory was listed.
    if (const auto now = is_name && !here ? tree.look_up(name) : fail(ENOENT); now && S_ISREG(now->st_mode))
      here = index_of(target).stored(now->st_ino);
    const auto tier = here ? std::optional(here->second) : std::nullopt;
    if (here && pins.seconds > 0)
      if (const auto now = tree.readable(name); now && now->st_ino == here->first.ino)
        pinned += pin(target, pins, here->first);
    end_run(tier);
    ended = !tier.has_value();
    if (!ended) ++present;
  }
  end_run(std::nullopt);
  return fmt::format("present={} asked={} index={}{}{}\n{}", present, asked, state.text(), told_if_cut(tree),
                     pins.seconds == 0 ? "" : fmt::format(" pinned={}", pinned), runs);
}

Result<std::string> answer_where(ControlledPool& target, ReadableTree& tree,
                                 std::span<const EntryIndex::Filter> filters) {
  const IndexState state(target);
  const uint64_t now = now_coarse_ms();
  const auto found = index_of(target).list(filters, asker_in(tree));
  const bool is_whole = found.size() < EntryIndex::kMostListed && !tree.work().is_cut();
  std::string answer =
      fmt::format("entries={} more={} index={}\n", found.size(), is_whole ? "no" : "maybe", state.text());
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

Result<std::string> answer_match(ControlledPool& target, const Rights& rights, std::string_view text) {
  if (text.empty()) return fmt::format("A query is written first: {}.\n", kMatchForms);
  const auto query = parse_match_query(text);
  if (!query) return wrong_query(target, query.error());
  auto root = root_of(target);
  if (!root) return pass(root);
  QueryWork work = work_for(target);
  ReadableTree tree(std::move(*root), rights, work);
  if (const auto* tokens = std::get_if<TokensQuery>(&*query))
    return unless_ended(work, match_tokens(target, tree, *tokens));
  if (const auto* names = std::get_if<NamesQuery>(&*query))
    return unless_ended(work, answer_names(target, tree, names->lines, names->pin));
  return unless_ended(work, answer_where(target, tree, std::get<WhereQuery>(*query).filters));
}

Result<std::string> answer_similar(ControlledPool& target, const Rights& rights, std::string_view text) {
  if (text.empty()) return "A query is written first: `tokens [model=NAME]` and token ids.\n";
  const auto parsed = parse_similar_query(text);
  if (!parsed) return wrong_query(target, parsed.error());
  const EntryIndex::SimilarQuery& query = *parsed;
  auto root = root_of(target);
  if (!root) return pass(root);
  QueryWork work = work_for(target);
  ReadableTree tree(std::move(*root), rights, work);
  const IndexState state(target);
  const auto found = index_of(target).similar(query, asker_in(tree));
  std::string answer =
      fmt::format("blocks={} found={} truncated={} index={}{}\n", query.tokens.size() / kSimilarBlockTokens,
                  found.blocks.size(), found.truncated, state.text(), told_if_cut(tree));
  for (const auto& [entry, block, owner] : found.blocks)
    fmt::format_to(std::back_inserter(answer), "{}\t{}\t{}\t{:.4f}\t{}\t{}\t{}\t{}\n", block.query_token,
                   block.token, block.distance, block.confidence(), tier_name(entry.tier), entry.version,
                   owner.empty() ? "-" : escaped(owner, "\\"), escaped(entry.name, "\\"));
  return unless_ended(work, std::move(answer));
}

void OpenQuery::follows_another() {
  MutexLock lock(mutex_);
  is_lost_ = true;
}

Result<void> OpenQuery::add(std::string_view text) {
  MutexLock lock(mutex_);
  if (is_being_answered_) return fail(EBUSY);
  is_lost_ = false;
  if (std::exchange(answered_, false)) error_ = 0;
  answer_ = {};
  // A query of which a part is lost is none, whatever comes after it.
  if (error_ == 0 && query_.size() + text.size() > kMostQueryBytes) error_ = EMSGSIZE;
  if (error_ == 0 && !memory_.set(query_.size() + text.size())) error_ = EDQUOT;
  if (error_ != 0) return fail(error_);
  query_ += text;
  return {};
}

Result<std::string> OpenQuery::read(uint64_t offset, size_t size, const Answer& answer) {
  std::string query;
  {
    MutexLock lock(mutex_);
    if (is_lost_) return fail(ESTALE);
    if (is_being_answered_) return fail(EBUSY);
    if (answered_) return part(offset, size);
    query = std::exchange(query_, {});  // its memory too: an open may stay for long
    answered_ = true;
    if (error_ != 0) {
      (void)memory_.set(0);
      return fail(error_);
    }
    is_being_answered_ = true;
  }
  auto text = answer(query);
  MutexLock lock(mutex_);
  is_being_answered_ = false;
  (void)memory_.set(0);
  if (text && !memory_.set(text->size())) text = fail(EDQUOT);
  if (!text) {
    error_ = text.error().code;
    return text;
  }
  answer_ = std::move(*text);
  begin_ = offset;
  return part(offset, size);
}

Result<std::string> OpenQuery::part(uint64_t offset, size_t size) {
  if (error_ != 0) return fail(error_);
  if (offset < begin_) begin_ = offset;
  const uint64_t from = offset - begin_;
  return from < answer_.size() ? answer_.substr(from, size) : std::string();
}

}  // namespace kvcachefs
