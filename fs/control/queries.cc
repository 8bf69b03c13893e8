#include "fs/control/queries.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <memory>
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

// Says whether an answer covers all entries. The state is noted before the answer is made, and completed
// after it: an entry that the answer missed may have been read by then.
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

QueryWork work_for(ControlledPool& target, AnswerText& text) {
  static const std::atomic<bool> never = false;
  return index_of(target).work_until(target.queries_end != nullptr ? *target.queries_end : never,
                                     [&text](uint64_t bytes) { return text.take(bytes); });
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
  return tree.work().may_lack() ? " more=maybe" : "";
}

// An answer that is cut off because queries must stop fails.
Result<void> unless_ended(const QueryWork& work) {
  if (work.is_cut() && work.has_ended()) return fail(ENOTCONN);
  return {};
}

std::unexpected<Error> wrong_query(ControlledPool& target, const Error& why) {
  return fail(why.code, fmt::format("pool {}: {}", target.pool->name(), why.message));
}

bool pin(ControlledPool& target, const Pin& wanted, const sys::Handle& entry) {
  const auto holder = wanted.until_close ? target.holder : Lifetimes::kNobody;
  const uint64_t until_ms = now_coarse_ms() + uint64_t{wanted.seconds} * 1000;
  return wanted.seconds > 0 && target.pool->insight().lifetimes().lease(entry, until_ms, holder);
}

void match_tokens(ControlledPool& target, ReadableTree& tree, const TokensQuery& query, AnswerText& text) {
  const auto& tokens = query.tokens;
  const IndexState state(target);
  const auto pieces = index_of(target).match(query.model, tokens, asker_in(tree));
  const auto pinned = std::ranges::count_if(
      pieces, [&](const auto& piece) { return pin(target, query.pin, piece.entry.handle); });
  text.begin_with(
      fmt::format("matched_tokens={} query_tokens={} entries={} index={}{}{}{}\n",
                  pieces.empty() ? 0 : pieces.back().end_token, tokens.size(), pieces.size(), state.text(),
                  told_if_cut(tree), query.pin.seconds == 0 ? "" : fmt::format(" pinned={}", pinned),
                  tokens.size() < kSimilarBlockTokens
                      ? ""
                      : " prefix_hash=" + prefix_hash_of(std::span(tokens).first<kSimilarBlockTokens>())));
  for (const auto& piece : pieces)
    if (!text.add(fmt::format("{}\t{}\t{}\t{}\t{}\n", piece.first_token, piece.end_token,
                              tier_name(piece.entry.tier), piece.entry.version,
                              escaped(piece.entry.name, "\\"))))
      return;
}

// Answers how many of the names, from the first on, are stored entries, or, with `all`, which of the names
// are. Each line is a run of one tier.
void answer_names(ControlledPool& target, ReadableTree& tree, const NamesQuery& query, AnswerText& text) {
  const IndexState state(target);
  size_t asked = 0, looked_at = 0, present = 0, run_begin = 0, pinned = 0;
  bool ended = false;
  std::string_view run, names = query.lines;  // the run's tier, empty before the first
  const auto end_run = [&](std::string_view next) {
    if (!run.empty() && run != next) text.add(fmt::format("{}\t{}\t{}\n", run_begin, looked_at, run));
    if (run != next) run_begin = looked_at;
    run = next;
  };
  while (const auto line = take_name(names)) {
    ++asked;
    if (ended) continue;
    const std::string name = name_in(*line);
    // No call can use a longer name, and each of its directories would be opened below the one before.
    const bool is_name = name.size() < PATH_MAX && !name.contains('\0');
    const auto file = is_name ? tree.file_at(name) : std::nullopt;
    auto here = file ? index_of(target).stored(*file) : std::nullopt;
    // The entry may have been replaced since the directory was listed.
    if (const auto now = is_name && !here ? tree.look_up(name) : fail(ENOENT); now && S_ISREG(now->st_mode))
      here = index_of(target).stored(now->st_ino);
    if (here && query.pin.seconds > 0)
      if (const auto now = tree.readable(name); now && now->st_ino == here->first.ino)
        pinned += pin(target, query.pin, here->first);
    // If the query was cut off at this name, it is not known whether the name is there.
    ended = !here && (!query.all || tree.work().is_cut());
    if (ended) continue;
    end_run(here ? tier_name(here->second) : "-");
    ++looked_at;
    if (here) ++present;
  }
  end_run({});
  text.begin_with(fmt::format("present={} asked={} index={}{}{}\n", present, asked, state.text(),
                              told_if_cut(tree),
                              query.pin.seconds == 0 ? "" : fmt::format(" pinned={}", pinned)));
}

void answer_where(ControlledPool& target, ReadableTree& tree, std::span<const EntryIndex::Filter> filters,
                  AnswerText& text) {
  const IndexState state(target);
  const uint64_t now = now_coarse_ms();
  size_t entries = 0;
  std::string line;
  index_of(target).list(filters, asker_in(tree),
                        [&](const EntryIndex::Found& entry, const Metadata& metadata) {
                          ++entries;
                          line = fmt::format("{}\t{}\t{}\t{}\t", entry.size_bytes, tier_name(entry.tier),
                                             entry.hits, (now - std::min(now, entry.stored_ms)) / 1000);
                          append_escaped(line, entry.name, "\\");
                          for (size_t i = 0; i < kAttributes; ++i)
                            if (!metadata.attributes[i].empty()) {
                              line += fmt::format("\t{}=", name_of(static_cast<Attribute>(i)));
                              append_escaped(line, metadata.attributes[i], "\\");
                            }
                          line += '\n';
                          return text.add(line);
                        });
  const bool is_whole = entries < EntryIndex::kMostListed && !tree.work().is_cut();
  text.begin_with(
      fmt::format("entries={} more={} index={}\n", entries, is_whole ? "no" : "maybe", state.text()));
}

}  // namespace

Result<void> answer_match(ControlledPool& target, const Rights& rights, std::string_view query_text,
                          AnswerText& text) {
  if (query_text.empty()) {
    text.begin_with(fmt::format("Write a query first: {}.\n", kMatchForms));
    return {};
  }
  const auto query = parse_match_query(query_text);
  if (!query) return wrong_query(target, query.error());
  auto root = root_of(target);
  if (!root) return pass(root);
  QueryWork work = work_for(target, text);
  ReadableTree tree(std::move(*root), rights, work);
  if (const auto* tokens = std::get_if<TokensQuery>(&*query))
    match_tokens(target, tree, *tokens, text);
  else if (const auto* names = std::get_if<NamesQuery>(&*query))
    answer_names(target, tree, *names, text);
  else
    answer_where(target, tree, std::get<WhereQuery>(*query).filters, text);
  return unless_ended(work);
}

Result<void> answer_similar(ControlledPool& target, const Rights& rights, std::string_view query_text,
                            AnswerText& text) {
  if (query_text.empty()) {
    text.begin_with("Write a query first: `tokens [model=NAME]` and token ids.\n");
    return {};
  }
  const auto parsed = parse_similar_query(query_text);
  if (!parsed) return wrong_query(target, parsed.error());
  const EntryIndex::SimilarQuery& query = *parsed;
  auto root = root_of(target);
  if (!root) return pass(root);
  QueryWork work = work_for(target, text);
  ReadableTree tree(std::move(*root), rights, work);
  const IndexState state(target);
  const auto found = index_of(target).similar(query, asker_in(tree));
  text.begin_with(fmt::format("blocks={} found={} truncated={}{} index={}{}\n",
                              query.tokens.size() / kSimilarBlockTokens, found.blocks.size(), found.truncated,
                              found.blocks.empty() ? fmt::format(" not_pre_rope={}", found.not_pre_rope) : "",
                              state.text(), told_if_cut(tree)));
  for (const auto& [entry, block, owner] : found.blocks)
    if (!text.add(fmt::format("{}\t{}\t{}\t{:.4f}\t{}\t{}\t{}\t{}\n", block.query_token, block.token,
                              block.distance, block.confidence(), tier_name(entry.tier), entry.version,
                              owner.empty() ? "-" : escaped(owner, "\\"), escaped(entry.name, "\\"))))
      break;
  return unless_ended(work);
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
  answer_.reset();
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
  auto text = std::make_unique<AnswerText>(budget_, user_);
  auto done = answer(query, *text);
  if (done && !text->finish()) done = fail(EDQUOT);
  MutexLock lock(mutex_);
  is_being_answered_ = false;
  (void)memory_.set(0);
  if (!done) {
    error_ = done.error().code;
    return pass(done);
  }
  answer_ = std::move(text);
  begin_ = offset;
  return part(offset, size);
}

Result<std::string> OpenQuery::part(uint64_t offset, size_t size) {
  if (error_ != 0) return fail(error_);
  if (offset < begin_) begin_ = offset;
  return answer_->part(offset - begin_, size);
}

}  // namespace kvcachefs
