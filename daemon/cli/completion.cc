#include "daemon/cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <ranges>

namespace kvcachefs {
namespace {

using Argument = CompletedCommand::Argument;

// The pools of the only mount, which is root's (find_kvcachefs_roots()). Names of pools need no quotes.
// timeout(1) keeps a hanging daemon from holding up the shell.
constexpr std::string_view kPools =
    "timeout -s KILL 2 ls \"$(findmnt -n -f -o TARGET -t fuse.kvcachefs -O user_id=0 2>/dev/null)\" "
    "2>/dev/null";

std::string single_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string names_of(const std::vector<CompletedCommand>& commands) {
  return fmt::format("{}", fmt::join(std::views::transform(commands, &CompletedCommand::name), " "));
}

// Bash and zsh share the words of a command at a place; `say` tells the shell of them.
template <class Say>
std::string cases(const std::vector<CompletedCommand>& commands, Say say) {
  std::string out;
  for (const CompletedCommand& command : commands) {
    out += fmt::format("    {})\n", command.name);
    if (!command.options.empty())
      out += fmt::format("      [[ $cur == -* ]] && {{ {}; return; }}\n",
                         say(fmt::format("{}", fmt::join(command.options, " ")), false));
    for (size_t at = 0; at < command.arguments.size(); ++at) {
      const bool is_last = at + 1 == command.arguments.size();
      out += fmt::format("      (( place {} {} )) && {{ {}; return; }}\n", is_last ? ">=" : "==", at,
                         say(std::string(), command.arguments[at]));
    }
    out += "      ;;\n";
  }
  return out;
}

std::string bash(const std::vector<CompletedCommand>& commands, const std::string& keys,
                 const std::string& live) {
  struct Say {
    std::string operator()(const std::string& words, bool) const {
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", words);
    }
    std::string operator()(const std::string&, Argument argument) const {
      switch (argument) {
        case Argument::kPool:
          return fmt::format("COMPREPLY=($(compgen -W \"$({})\" -- \"$cur\"))", kPools);
        case Argument::kKey:
          return "COMPREPLY=($(compgen -W \"$keys\" -- \"$cur\"))";
        case Argument::kSetting:
          return "COMPREPLY=($(compgen -S = -W \"$live\" -- \"$cur\")); compopt -o nospace";
        case Argument::kFile:
          return "COMPREPLY=($(compgen -f -- \"$cur\"))";
      }
      return {};
    }
  };
  return fmt::format(
      "# bash completion of kvcachefs(1)\n"
      "_kvcachefs() {{\n"
      "  local cur=${{COMP_WORDS[COMP_CWORD]}} command= word place=0 i\n"
      "  local keys='{}' live='{}'\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    word=${{COMP_WORDS[i]}}\n"
      "    [[ $word == --mount ]] && {{ ((i++)); continue; }}\n"
      "    [[ $word == -* || $word == = ]] && continue\n"
      "    if [[ -z $command ]]; then command=$word; else ((place++)); fi\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command in\n"
      "    '') COMPREPLY=($(compgen -W '{} --mount --version --help' -- \"$cur\")) ;;\n"
      "{}"
      "  esac\n"
      "}}\n"
      "complete -F _kvcachefs kvcachefs\n",
      keys, live, names_of(commands), cases(commands, Say()));
}

std::string zsh(const std::vector<CompletedCommand>& commands, const std::string& keys,
                const std::string& live) {
  struct Say {
    std::string operator()(const std::string& words, bool) const {
      return fmt::format("compadd -- {}", words);
    }
    std::string operator()(const std::string&, Argument argument) const {
      switch (argument) {
        case Argument::kPool:
          return fmt::format("compadd -- $({})", kPools);
        case Argument::kKey:
          return "compadd -- ${=keys}";
        case Argument::kSetting:
          return "compadd -S = -- ${=live}";
        case Argument::kFile:
          return "_files";
      }
      return {};
    }
  };
  return fmt::format(
      "#compdef kvcachefs\n"
      "local cur=${{words[CURRENT]}} command= word place=0 i\n"
      "local keys='{}' live='{}'\n"
      "for ((i = 2; i < CURRENT; i++)); do\n"
      "  word=${{words[i]}}\n"
      "  [[ $word == --mount ]] && {{ ((i++)); continue }}\n"
      "  [[ $word == -* ]] && continue\n"
      "  if [[ -z $command ]]; then command=$word; else ((place += 1)); fi\n"
      "done\n"
      "case $command in\n"
      "    '') compadd -- {} --mount --version --help ;;\n"
      "{}"
      "esac\n",
      keys, live, names_of(commands), cases(commands, Say()));
}

std::string fish(const std::vector<CompletedCommand>& commands, const std::string& keys,
                 const std::string& live) {
  std::string out =
      "# fish completion of kvcachefs(1)\n"
      "complete -c kvcachefs -f\n"
      "complete -c kvcachefs -l mount -r -F\n";
  for (const CompletedCommand& command : commands) {
    const std::string seen = fmt::format("'__fish_seen_subcommand_from {}'", command.name);
    out += fmt::format("complete -c kvcachefs -n __fish_use_subcommand -a {} -d {}\n", command.name,
                       single_quoted(command.help));
    for (const std::string& option : command.options)
      out += fmt::format("complete -c kvcachefs -n {} -l {}\n", seen, option.substr(2));
    for (const Argument argument : command.arguments) {
      switch (argument) {
        case Argument::kPool:
          out += fmt::format(
              "complete -c kvcachefs -n {} -a '(for mount in (findmnt -n -f -o TARGET -t "
              "fuse.kvcachefs -O user_id=0 2>/dev/null); timeout -s KILL 2 ls $mount 2>/dev/null; end)'\n",
              seen);
          break;
        case Argument::kKey:
          out += fmt::format("complete -c kvcachefs -n {} -a '{}'\n", seen, keys);
          break;
        case Argument::kSetting: {
          std::string settings = live;
          for (size_t at = 0; (at = settings.find(' ', at)) != std::string::npos; at += 2)
            settings.insert(at, "=");
          out += fmt::format("complete -c kvcachefs -n {} -a '{}='\n", seen, settings);
          break;
        }
        case Argument::kFile:
          out += fmt::format("complete -c kvcachefs -n {} -F\n", seen);
          break;
      }
    }
  }
  return out;
}

}  // namespace

std::string completion_of(std::string_view shell, const std::vector<CompletedCommand>& commands,
                          const std::vector<std::string>& keys, const std::vector<std::string>& live) {
  const auto make = shell == "bash" ? bash : shell == "zsh" ? zsh : fish;
  return make(commands, fmt::format("{}", fmt::join(keys, " ")), fmt::format("{}", fmt::join(live, " ")));
}

}  // namespace kvcachefs
