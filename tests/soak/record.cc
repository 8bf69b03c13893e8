#include "tests/soak/record.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

#include "tests/support/files.h"

namespace kvcachefs::soak {

uint64_t monotonic_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

Record::Record() {
  void* const at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::runtime_error("no shared memory");
  shared_ = new (at) Shared;
}

Record::~Record() {
  ::munmap(shared_, sizeof(Shared));
}

void Record::begins(int client, Call call) {
  ClientState& its = shared_->clients[client];
  its.call = static_cast<int>(call);
  its.call_begun_ns = monotonic_ns();
}

void Record::ends(int client, Call call, int error, std::string_view what) {
  ClientState& its = shared_->clients[client];
  const uint64_t waited_ns = waits_ns(client);
  const uint64_t took_us = (monotonic_ns() - its.call_begun_ns.exchange(0)) / 1000;
  CallCounts& counts = shared_->calls[static_cast<int>(call)];
  uint64_t longest = counts.longest_us;
  while (took_us > longest && !counts.longest_us.compare_exchange_weak(longest, took_us)) {
  }
  const uint64_t before = counts.by_error[std::min(error, CallCounts::kErrors - 1)]++;
  const CallKind& kind = kind_of(call);
  const auto say = [&](const std::string& text) {
    fail(kind.name + " in `" + its.action.load() + "` of " + std::string(what) + ": " + text, false);
  };
  if (!is_documented(call, error) && before == 0) say(test::error_name(error) + " is not documented for it");
  if (waited_ns > static_cast<uint64_t>(kind.most_seconds) * 1'000'000'000)
    say("took " + std::to_string(took_us / 1000) + " ms, " + std::to_string(waited_ns / 1'000'000) +
        " of them since the last takeover");
}

uint64_t Record::waits_ns(int client) const {
  const uint64_t begun_ns = shared_->clients[client].call_begun_ns;
  const uint64_t now_ns = monotonic_ns();
  return begun_ns == 0 ? 0
                       : now_ns - std::min(now_ns, std::max<uint64_t>(begun_ns, shared_->serving_since_ns));
}

void Record::fail(std::string_view text, bool at_once) {
  const uint64_t number = shared_->failures++;
  if (number < kTexts)
    std::memcpy(shared_->texts[number].data(), text.data(), std::min(text.size(), kTextBytes - 1));
  std::fprintf(stderr, "FAILURE: %.*s\n", static_cast<int>(text.size()), text.data());
  if (at_once) end();
}

std::vector<std::string> Record::texts() const {
  std::vector<std::string> all;
  for (uint64_t i = 0; i < std::min<uint64_t>(shared_->failures, kTexts); ++i)
    all.emplace_back(shared_->texts[i].data());
  return all;
}

std::string Record::table() const {
  std::string text;
  std::array<char, 256> line{};
  for (int call = 0; call < kCalls; ++call) {
    const CallCounts& counts = shared_->calls[call];
    const CallKind& kind = kind_of(static_cast<Call>(call));
    std::string errors;
    uint64_t all = 0;
    for (int error = 0; error < CallCounts::kErrors; ++error) {
      all += counts.by_error[error];
      if (error == 0 || counts.by_error[error] == 0) continue;
      errors += " " + test::error_name(error) + (is_documented(static_cast<Call>(call), error) ? "" : "(!)") +
                "=" + std::to_string(counts.by_error[error]);
    }
    std::snprintf(line.data(), line.size(), "%-24s %10lu calls, longest %9.1f ms %s\n", kind.name.c_str(),
                  all, static_cast<double>(counts.longest_us) / 1000, errors.c_str());
    text += line.data();
  }
  return text;
}

}  // namespace kvcachefs::soak
