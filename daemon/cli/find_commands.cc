// The commands that ask which entries hold what a prompt needs.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <vector>

#include "base/escape.h"
#include "base/key_value.h"
#include "base/sys.h"
#include "base/sys_beneath.h"
#include "base/sys_disk.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/declare.h"
#include "daemon/cli/table.h"
#include "fs/control/index_records.h"
#include "fs/control/query_forms.h"
#include "tier/index/entry_index.h"

namespace kvcachefs {
namespace {

// A part of an answer: `key=value` pairs in the first line, then lines of tab-separated fields.
struct Answer {
  std::string head;
  std::vector<std::vector<std::string>> rows;

  std::string value(std::string_view key) const {
    std::string_view words = head;
    for (auto word = take_word(words); !word.empty(); word = take_word(words))
      if (const KeyValue pair = split_key_value(word); pair.key == key) return std::string(*pair.value);
    return {};
  }
};

// The daemon says it in its log alone.
std::optional<std::string> what_is_wrong(std::string_view file, std::string_view query) {
  if (file == "similar") {
    const auto parsed = parse_similar_query(query);
    return parsed ? std::nullopt : std::optional(parsed.error().message);
  }
  const auto parsed = parse_match_query(query);
  return parsed ? std::nullopt : std::optional(parsed.error().message);
}

CliResult<Answer> ask(const MountTree& tree, const std::string& pool, std::string_view file,
                      std::string_view query) {
  auto text = tree.ask(pool, file, query);
  if (!text) {
    if (text.error().code != EINVAL) return pass(text);
    return stop(kFailure,
                what_is_wrong(file, query)
                    .value_or(fmt::format("pool {} takes no such query; its daemon's log says why", pool)));
  }
  Answer answer;
  std::string_view lines = *text;
  answer.head = take_part(lines, '\n');
  while (!lines.empty()) {
    auto& row = answer.rows.emplace_back();
    std::string_view line = take_part(lines, '\n');
    for (bool more = true; more;) {
      more = line.find('\t') != std::string_view::npos;
      row.emplace_back(take_part(line, '\t'));
    }
  }
  return answer;
}

CliResult<std::string> text_of(const std::string& file) {
  if (file == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  auto text = sys::read_text(file.c_str());
  if (!text) return stop(kFailure, fmt::format("{}: {}", file, sys::error_text(text.error().code)));
  return std::move(*text);
}

// Token ids as any list of numbers has them, of JSON too.
std::string ids_of(std::string text) {
  std::ranges::replace_if(
      text, [](char letter) { return std::string_view("[],").contains(letter); }, ' ');
  return text;
}

CliResult<std::string> ids_given(const CliArguments& arguments) {
  if (arguments.tokens_file.empty()) return ids_of(arguments.ids);
  auto text = text_of(arguments.tokens_file);
  if (!text) return text;
  return ids_of(std::move(*text));
}

// For take_field().
std::string as_field(std::string_view value) {
  return escaped(value, "\\ ");
}

CliResult<std::string> query_of(const CliArguments& arguments, std::string options = {}) {
  if (!arguments.pin.empty()) options += " pin=" + arguments.pin;
  if (!arguments.names_file.empty()) {
    auto names = text_of(arguments.names_file);
    if (!names) return names;
    return (arguments.all ? "names all" : "names") + options + "\n" + *names;
  }
  auto ids = ids_given(arguments);
  if (!ids) return ids;
  const std::string model = arguments.model.empty() ? "" : " model=" + as_field(arguments.model);
  return fmt::format("tokens{}{}\n{}", model, options, *ids);
}

// Of what an answer says of itself, and of each of its rows; what follows in a row is KEY=VALUE.
using Fields = std::span<const std::string_view>;

bool is_text(std::string_view key) {
  return key == "name" || key == "agent" || key == "tier";
}

nlohmann::json value_of(std::string_view key, std::string_view text) {
  const auto number = is_text(key) ? std::nullopt : number_in<uint64_t>(text);
  return number ? nlohmann::json(*number) : nlohmann::json(text);
}

std::string json_text(const Answer& answer, Fields fields) {
  nlohmann::json json = nlohmann::json::object();
  std::string_view words = answer.head;
  for (auto word = take_word(words); !word.empty(); word = take_word(words)) {
    const KeyValue pair = split_key_value(word);
    json[std::string(pair.key)] = value_of(pair.key, *pair.value);
  }
  auto& rows = json["rows"] = nlohmann::json::array();
  for (const auto& row : answer.rows) {
    auto& object = rows.emplace_back(nlohmann::json::object());
    for (size_t i = 0; i < row.size(); ++i) {
      const KeyValue pair = split_key_value(row[i]);
      if (i < fields.size())
        object[std::string(fields[i])] = value_of(fields[i], row[i]);
      else
        object[std::string(pair.key)] = *pair.value;
    }
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

std::string table_text(const Answer& answer, Fields fields) {
  std::vector<Table::Column> columns;
  for (const std::string_view field : fields) {
    auto& column = columns.emplace_back(std::string(field), is_text(field) ? Align::kLeft : Align::kRight);
    std::ranges::transform(column.title, column.title.begin(), ::toupper);
  }
  Table table(std::move(columns));
  for (const auto& row : answer.rows) {
    const auto size = static_cast<ptrdiff_t>(std::min(row.size(), fields.size()));
    std::vector<std::string> cells(row.begin(), row.begin() + size);
    cells.resize(fields.size());
    for (size_t i = fields.size(); i < row.size(); ++i) cells.back() += "  " + row[i];
    table.add(std::move(cells));
  }
  return answer.rows.empty() ? std::string() : table.text();
}

CliResult<void> print(const CliResult<Answer>& answer, Fields fields, const CliArguments& arguments,
                      std::ostream& out) {
  if (!answer) return std::unexpected(answer.error());
  out << (arguments.json ? json_text(*answer, fields) : answer->head + '\n' + table_text(*answer, fields));
  return {};
}

}  // namespace

void declare_find_commands(CLI::App& app, CliArguments& arguments) {
  const auto take_tokens = [&arguments](CLI::App* command) {
    CLI::Option_group* query = command->add_option_group("query");
    query
        ->add_option("--tokens", arguments.tokens_file,
                     "Token ids: decimal numbers, or a JSON array; - reads the input")
        ->type_name("FILE");
    query->add_option("--ids", arguments.ids, "The token ids: 1,2,3")->type_name("LIST");
    query->require_option(1);
    return query;
  };
  const auto take_model = [&arguments](CLI::App* command) {
    command
        ->add_option("--model", arguments.model,
                     "Entries of this user.kv.model alone; default: those without")
        ->type_name("NAME");
  };
  on_pool(app, arguments, "index", "Say what entries hold, by records", "POOL")
      ->add_option("FILE", arguments.records_file,
                   "Records, such as: index NAME tokens=1,2,3 model=NAME; default: the input");
  CLI::App* match =
      on_pool(app, arguments, "match", "Show which entries hold the longest prefix of tokens", "POOL");
  CLI::Option* const names =
      take_tokens(match)
          ->add_option("--names", arguments.names_file,
                       "Names in the pool, one a line: how many of them, from the first on, are there; - "
                       "reads the input")
          ->type_name("FILE");
  match->add_flag("--all", arguments.all, "With --names: which of all names are there")->needs(names);
  take_model(match);
  match
      ->add_option("--pin", arguments.pin,
                   "Keep what the answer names for so long, 600 seconds at most: 30s, 5m")
      ->type_name("TIME");
  CLI::App* similar =
      on_pool(app, arguments, "similar", "Show blocks that are nearly those of the tokens", "POOL");
  take_tokens(similar);
  take_model(similar);
  similar->add_option("--distance", arguments.distance, "Bits of 64 that may differ")
      ->check(CLI::Range(0U, SimilarIndex::kMostDistance))
      ->capture_default_str();
  similar
      ->add_option("--not-agent", arguments.not_agent,
                   "Leave out this agent's entries, and those of his roles")
      ->type_name("AGENT");
  similar->add_option("--most", arguments.most, "So many at most")
      ->check(CLI::Range(size_t{1}, EntryIndex::kMostSimilar))
      ->capture_default_str();
  CLI::App* list = on_pool(app, arguments, "list", "List the entries that have these attributes", "POOL");
  CLI::App* remove =
      on_pool(app, arguments, "remove", "Remove the entries that have these attributes", "POOL");
  for (CLI::App* command : {list, remove})
    command->add_option("--where", arguments.where, "agent, anchor, group, model, layer or workflow_step")
        ->required()
        ->type_name("KEY=VALUE");
  list->add_option("--sort", arguments.sort, "By hits, age or size, the largest first; default: by name")
      ->check(CLI::IsMember({"hits", "age", "size"}));
  for (CLI::App* command : {match, similar, list}) command->add_flag("--json", arguments.json, "As JSON");
  on_pool(app, arguments, "forget-agent", "Make an agent's entries nobody's", "POOL")
      ->add_option("AGENT", arguments.agent, "The value of user.kv.agent")
      ->required();
  take_tokens(app.add_subcommand("prefix-hash", "Print the hash of the first block of tokens, for a router"));
}

// They are looked at first, because the daemon says in its log alone what is wrong with one.
CliResult<void> index_records(const MountTree& tree, const CliArguments& arguments, const CliEnvironment&) {
  const auto text = text_of(arguments.records_file);
  if (!text) return std::unexpected(text.error());
  constexpr size_t kPartBytes = 512 << 10;  // less than the kernel gives the daemon at once
  std::vector<std::string_view> parts;
  std::string_view left = *text, part = left;
  for (size_t index = 0; !left.empty(); ++index) {
    const std::string_view before = left;
    const auto record = take_record(left);
    if (!record) return stop(kFailure, in_record(index, {}, record.error()).message);
    if (!*record && !left.empty()) return stop(kFailure, fmt::format("record {} has no end", index + 1));
    const auto taken = static_cast<size_t>(before.data() - part.data());
    if (part.size() - left.size() <= kPartBytes || taken == 0) continue;
    parts.push_back(part.substr(0, taken));
    part = before;
  }
  parts.push_back(part);
  for (const std::string_view each : parts)
    if (auto written = tree.write_records(arguments.pool, each); !written)
      return stop(kFailure, written.error().message + "; the daemon's log says of which record");
  return {};
}

CliResult<void> match(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment) {
  auto query = query_of(arguments);
  if (!query) return std::unexpected(query.error());
  static constexpr std::array<std::string_view, 5> kFields = {"first", "end", "tier", "version", "name"};
  const Fields of_names = Fields(kFields).first(3);
  return print(ask(tree, arguments.pool, "match", *query),
               arguments.names_file.empty() ? Fields(kFields) : of_names, arguments, environment.out);
}

CliResult<void> similar(const MountTree& tree, const CliArguments& arguments,
                        const CliEnvironment& environment) {
  const std::string excluded =
      arguments.not_agent.empty() ? "" : " not_agent=" + as_field(arguments.not_agent);
  auto query = query_of(arguments,
                        fmt::format(" distance={} most={}{}", arguments.distance, arguments.most, excluded));
  if (!query) return std::unexpected(query.error());
  static constexpr std::array<std::string_view, 8> kFields = {
      "query_token", "token", "distance", "confidence", "tier", "version", "agent", "name"};
  return print(ask(tree, arguments.pool, "similar", *query), kFields, arguments, environment.out);
}

CliResult<void> forget_agent(const MountTree& tree, const CliArguments& arguments, const CliEnvironment&) {
  return tree.write_control(arguments.pool, "forget_agent", arguments.agent);
}

CliResult<void> prefix_hash(const CliArguments& arguments, const CliEnvironment& environment) {
  auto ids = ids_given(arguments);
  if (!ids) return std::unexpected(ids.error());
  std::array<uint32_t, kSimilarBlockTokens> block{};
  std::string_view words = *ids;
  for (uint32_t& token : block) {
    const auto number = number_in<uint32_t>(take_word(words));
    if (!number) return stop(kUsage, fmt::format("a prefix hash is of the first {} token ids", block.size()));
    token = *number;
  }
  environment.out << prefix_hash_of(block) << '\n';
  return {};
}

namespace {

CliResult<Answer> ask_where(const MountTree& tree, const CliArguments& arguments) {
  std::string query = "where\n";
  for (const std::string& filter : arguments.where) query += filter + '\n';
  return ask(tree, arguments.pool, "match", query);
}

// Another may have the name since it was answered: no link is followed, and the attributes are looked at
// again.
Result<void> remove_beneath(int pool, const std::string& name, std::span<const std::string> where) {
  auto file = sys::open_beneath(pool, name.c_str(), O_PATH | O_NOFOLLOW);
  if (!file) return pass(file);
  for (const std::string& filter : where) {
    const KeyValue pair = split_key_value(filter);
    char value[256];
    const auto bytes = sys::get_xattr(file->get(), fmt::format("user.kv.{}", pair.key).c_str(), value);
    if (!bytes || std::string_view(value, *bytes) != pair.value) return fail(ENOENT);
  }
  const size_t slash = name.rfind('/');
  if (slash == std::string::npos) return sys::unlink_at(pool, name.c_str(), 0);
  auto directory = sys::open_beneath(pool, name.substr(0, slash).c_str(), O_PATH | O_DIRECTORY);
  if (!directory) return pass(directory);
  return sys::unlink_at(directory->get(), name.c_str() + slash + 1, 0);
}

}  // namespace

// One answer may not have all, and others remove some meanwhile.
CliResult<void> remove_entries(const MountTree& tree, const CliArguments& arguments,
                               const CliEnvironment& environment) {
  for (uint64_t removed = 0;;) {
    auto answer = ask_where(tree, arguments);
    if (!answer) return std::unexpected(answer.error());
    if (answer->value("index") == "building")
      environment.error << "kvcachefs: not all attributes have been read yet since the start\n";
    auto pool = sys::open_at(AT_FDCWD, tree.pool_path(arguments.pool).c_str(), O_PATH | O_DIRECTORY);
    if (!pool) return pass(pool);
    uint64_t now = 0;
    std::string left;
    int error = 0;
    for (const auto& row : answer->rows) {
      if (row.size() < 5) continue;
      const std::string name = unescaped(row[4]);
      const auto gone = remove_beneath(pool->get(), name, arguments.where);
      if (gone)
        ++now;
      else if (gone.error().code != ENOENT)
        left = name, error = gone.error().code;
    }
    removed += now;
    if (error != 0 && now == 0)
      return stop(kFailure, fmt::format("{}: {} ({} are removed)", left, sys::error_text(error), removed));
    if (now > 0) continue;
    environment.out << "removed " << removed << '\n';
    return {};
  }
}

CliResult<void> list(const MountTree& tree, const CliArguments& arguments,
                     const CliEnvironment& environment) {
  auto answer = ask_where(tree, arguments);
  if (!answer) return std::unexpected(answer.error());
  static constexpr std::array<std::string_view, 5> kFields = {"size", "tier", "hits", "age", "name"};
  const auto column = static_cast<size_t>(std::ranges::find(kFields, arguments.sort) - kFields.begin());
  const auto key = [column](const std::vector<std::string>& row) {
    return column < row.size() ? number_in<uint64_t>(row[column]).value_or(0) : 0;
  };
  const auto name = [](const std::vector<std::string>& row) {
    return row.size() > 4 ? row[4] : std::string();
  };
  std::ranges::sort(answer->rows, [&](const auto& one, const auto& other) {
    if (arguments.sort.empty() || key(one) == key(other)) return name(one) < name(other);
    return key(one) > key(other);
  });
  return print(answer, kFields, arguments, environment.out);
}

}  // namespace kvcachefs
