// The kvcachefs tool's command line. Any thread. Fails with EINVAL and one line; the tool then exits with 2.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/cli/listen_address.h"
#include "daemon/cli/mount_tree.h"

namespace kvcachefs {

struct CliArguments {
  std::string command = "help";
  std::string mount;               // empty: the only kvcachefs that is mounted
  std::string pool;                // empty: all pools (status)
  GivenSettings settings;          // of create, set, check
  std::string key;                 // of get (empty: all) and reset
  std::string order;               // of evict (`25%`, `10G`, `1000 entries`) and scrub (`start 200M`, `stop`)
  std::vector<std::string> paths;  // of pin, unpin, stat, prefetch
  int priority = 0;                // of prefetch
  bool no_wait = false;
  std::string runtime_dir = "/run/kvcachefs";  // of stop and report
  std::string config_file;                     // of check
  pid_t pid = 0;                               // of upgrade; 0: none is named
  bool data = false;
  bool repair = false;
  bool json = false;
  bool force = false;
  bool once = false;
  double interval_s = 2;
  bool names = false;                        // of report
  double watch_s = 0;                        // of stats; 0: once
  std::string textfile;                      // of metrics
  std::optional<ListenAddress> listen;       // of metrics
  double metrics_interval_s = 0;             // 0: once
  std::string tokens_file, ids, names_file;  // of match; one is given, and `-` is the input
  bool all = false;                          // of match, with names
  std::string model;                         // of match
  std::string pin;                           // of match: 30s, 5m
  std::vector<std::string> where;            // of list and remove: `agent=planner`
  std::string sort;                          // of list: hits, age or size; empty: by name
  unsigned distance = 8;                     // of similar, as the two that follow
  std::string not_agent;
  size_t most = 100;
  std::string agent;               // of forget-agent
  std::string records_file = "-";  // of index
  std::string help;                // the text that `help` prints
};

Result<CliArguments> parse_cli_arguments(int argc, const char* const* argv);

}  // namespace kvcachefs
