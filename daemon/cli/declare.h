// How commands of the tool declare what they take, where the declaration stands beside the command. One
// thread; a wrong declaration stops the process.
#pragma once

#include <CLI/CLI.hpp>

#include "daemon/cli/arguments.h"

namespace kvcachefs {

inline CLI::App* on_pool(CLI::App& app, CliArguments& arguments, const char* command, const char* help,
                         const char* pool = "NAME") {
  CLI::App* const declared = app.add_subcommand(command, help);
  declared->add_option(pool, arguments.pool, "The pool")->required();
  return declared;
}

void declare_find_commands(CLI::App& app, CliArguments& arguments);  // match, list

}  // namespace kvcachefs
