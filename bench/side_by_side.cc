// The program runs the contestants of README.md's table side by side and prints that table. It must be root.
// Usage: see kUsage.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/rows.h"

namespace {

using namespace kvcachefs::bench;

constexpr char kUsage[] =
    "usage: side_by_side [--quick] [--only "
    "read|write|daemon-io|open|fill|waiting|queries|directory|trace|match|spill]... "
    "[--json "
    "FILE] "
    "[--write "
    "README]\n"
    "  --quick   little of everything, to see that it works; the figures mean nothing\n"
    "  --only    this group of rows; parts of spill: spill-seam, -promote, -write, -space, -catalog, -today\n"
    "  --json    write the rows to FILE too\n"
    "  --write   put the table between the result marks of README\n"
    "Exit 0: all ran (bounds that were missed are in the table), 1: something failed, 77: this machine "
    "cannot run it.\n";
constexpr int kSkipped = 77;

struct Group {
  const char* name;
  void (*run)(Bench&);
};
constexpr Group kGroups[] = {{"read", read_rows},
                             {"write", write_rows},
                             {"daemon-io", daemon_io_rows},
                             {"open", open_rows},
                             {"fill", fill_rows},
                             {"waiting", waiting_rows},
                             {"queries", query_rows},
                             {"directory", directory_rows},
                             {"trace", trace_rows},
                             {"match", match_rows},
                             {"spill-seam", spill_rows},
                             {"spill-promote", promote_rows},
                             {"spill-write", spill_speed_rows},
                             {"spill-space", allocator_rows},
                             {"spill-catalog", catalog_rows},
                             {"spill-today", today_rows}};

struct Options {
  bool quick = false;
  std::vector<std::string> only;
  std::string json;
  std::string readme;
};

bool parse(int count, char** words, Options& options) {
  for (int index = 1; index < count; ++index) {
    const std::string word = words[index];
    if (word == "--quick") {
      options.quick = true;
      continue;
    }
    if (index + 1 == count) return false;
    const std::string value = words[++index];
    if (word == "--only") {
      options.only.push_back(value);
    } else if (word == "--json") {
      options.json = value;
    } else if (word == "--write") {
      options.readme = value;
    } else {
      return false;
    }
  }
  return true;
}

bool wanted(const Options& options, const std::string& group) {
  if (options.only.empty()) return true;
  for (const std::string& name : options.only) {
    if (group == name || group.starts_with(name + "-")) return true;
  }
  return false;
}

int skip(const char* reason) {
  const char* const required = std::getenv("KVCACHEFS_REQUIRE");
  const bool all = required != nullptr && std::strcmp(required, "all") == 0;
  std::fprintf(stderr, "%s: %s\n", all ? "missing" : "skipped", reason);
  return all ? 1 : kSkipped;
}

int run(const Options& options) {
  stop_on_signals();
  const Scale scale = options.quick ? quick_scale() : full_scale();
  Report report(options.quick);
  std::printf("%s", report.table().c_str());
  {
    const WorkDirectory work;
    Bench bench{scale, work, report};
    for (const Group& group : kGroups) {
      if (wanted(options, group.name)) group.run(bench);
    }
  }
  std::printf("\n%zu bounds missed\n", report.missed());
  if (!options.json.empty()) write_text(options.json, report.json());
  if (!options.readme.empty()) report.write_into(options.readme);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  Options options;
  if (!parse(count, words, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (::geteuid() != 0) return skip("root (mounting, passthrough)");
  if (::access("/dev/fuse", R_OK | W_OK) != 0) return skip("/dev/fuse");
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "side_by_side: %s\n", error.what());
    return 1;
  }
}
