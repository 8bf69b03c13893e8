// What the facts about a machine mean for kvcachefs: a row for each thing that it can use. Any thread; pure.
// Never fails.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/system_check/facts.h"

namespace kvcachefs {

struct SystemRow {
  enum class State { kPresent, kAbsent, kUnknown };
  std::string what = {};
  State state = State::kUnknown;
  std::string finding = {};  // and how it was found: tried, or read
  // Of what is not present: what kvcachefs does without it, and how to get it.
  std::string cost = {};
  std::string remedy = {};
  bool needed = false;  // nothing is served without it
};

std::vector<SystemRow> judge_system(const SystemFacts& facts);
bool can_serve(const std::vector<SystemRow>& rows);  // all that is needed is present

// The parts of judge_system(), each in a file of its own.
std::vector<SystemRow> judge_fuse(const SystemFacts& facts);
std::vector<SystemRow> judge_memory(const SystemFacts& facts);
std::vector<SystemRow> judge_disk(const SystemFacts& facts);

// Of what was not tried: why not, and what the version says, `since` being Linux's first that has it
// (empty: all have). Distributions take features back into older kernels, so that a version proves nothing.
std::string not_tried(const SystemFacts& facts, std::string_view since);

}  // namespace kvcachefs
