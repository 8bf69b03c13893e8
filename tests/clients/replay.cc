#include "tests/clients/replay.h"

#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "tests/clients/calls.h"
#include "tests/clients/client.h"
#include "tests/clients/content.h"
#include "tests/clients/processes.h"

namespace kvcachefs::clients {
namespace {

constexpr size_t kFailuresKept = 10;
constexpr std::chrono::minutes kRequestDeadline(2);

// A process's answer to one request; on the wire the fixed part, the events, and the failure.
struct Answer {
  ReplayTimes times;
  std::vector<BlockEvent> events;  // each is for the block of the request at the same index of `positions`
  std::vector<uint32_t> positions;
  std::string failure;
};

template <class Value>
void put(std::string& wire, const Value* values, size_t count) {
  wire.append(reinterpret_cast<const char*>(values), count * sizeof(Value));
}

std::string encode(const Answer& answer) {
  std::string wire;
  const uint64_t count = answer.events.size();
  put(wire, &answer.times, 1);
  put(wire, &count, 1);
  put(wire, answer.events.data(), count);
  put(wire, answer.positions.data(), count);
  return wire + answer.failure;
}

Answer decode(const std::string& wire) {
  Answer answer;
  uint64_t count = 0;
  const char* at = wire.data();
  const auto take = [&at](void* into, size_t size_bytes) {
    std::memcpy(into, at, size_bytes);
    at += size_bytes;
  };
  take(&answer.times, sizeof answer.times);
  take(&count, sizeof count);
  answer.events.resize(count);
  answer.positions.resize(count);
  take(answer.events.data(), count * sizeof(BlockEvent));
  take(answer.positions.data(), count * sizeof(uint32_t));
  answer.failure.assign(at, wire.data() + wire.size());
  return answer;
}

class Replayer {
 public:
  explicit Replayer(const ReplayOptions& options)
      : client_(make_vllm_direct({options.root, options.block_bytes, 0})), buffer_(options.block_bytes) {
    note(client_->start());
  }

  Answer request(const std::vector<uint64_t>& blocks) {
    answer_.times = {};
    answer_.events.clear();
    answer_.positions.clear();
    const uint64_t begin = now_ns();
    size_t found = 0;
    note(client_->probe(blocks, found));
    answer_.times.probe_ns = now_ns() - begin;
    size_t position = 0;
    while (position < found && read(blocks, position)) ++position;
    for (; position < blocks.size(); ++position) store(blocks, position);
    return answer_;
  }

 private:
  bool read(const std::vector<uint64_t>& blocks, size_t position) {
    const uint64_t begin = now_ns();
    const Outcome outcome = client_->load(blocks[position], buffer_.span());
    answer_.times.read_ns += now_ns() - begin;
    note(outcome);
    if (outcome.failed()) return false;
    happened(position, outcome.missed() ? BlockEvent::kLateMiss : BlockEvent::kRead);
    if (outcome.missed()) return false;
    if (const auto wrong = first_wrong_byte(blocks[position], buffer_.span())) {
      note({Outcome::Kind::kFailed,
            "wrong bytes of block " + std::to_string(blocks[position]) + " at " + std::to_string(*wrong)});
    }
    return true;
  }

  void store(const std::vector<uint64_t>& blocks, size_t position) {
    fill_content(blocks[position], buffer_.span());
    const uint64_t begin = now_ns();
    const Outcome outcome = client_->store(blocks[position], buffer_.span());
    answer_.times.store_ns += now_ns() - begin;
    note(outcome);
    if (outcome.done()) happened(position, outcome.existed ? BlockEvent::kExisted : BlockEvent::kStored);
  }

  void happened(size_t position, BlockEvent event) {
    answer_.events.push_back(event);
    answer_.positions.push_back(static_cast<uint32_t>(position));
  }

  void note(const Outcome& outcome) {
    if (outcome.failed() && answer_.failure.empty()) answer_.failure = outcome.reason;
  }

  std::unique_ptr<Client> client_;
  Buffer buffer_;
  Answer answer_;
};

void serve(const ReplayOptions& options, int requests, int answers) {
  Replayer replayer(options);
  // The parent ends the process by closing the requests; the deadline is for a parent that hangs.
  while (const auto request = receive_message(requests, kRequestDeadline)) {
    std::vector<uint64_t> blocks(request->size() / sizeof(uint64_t));
    std::memcpy(blocks.data(), request->data(), request->size());
    if (!send_message(answers, encode(replayer.request(blocks)))) return;
  }
}

void add(ReplayResult& result, const std::vector<uint64_t>& blocks, const Answer& answer) {
  for (size_t index = 0; index < answer.events.size(); ++index) {
    result.events.push_back({blocks[answer.positions[index]], answer.events[index]});
    if (answer.events[index] == BlockEvent::kRead) ++result.reads;
    if (answer.events[index] == BlockEvent::kStored) ++result.stores;
  }
  result.times.probe_ns += answer.times.probe_ns;
  result.times.read_ns += answer.times.read_ns;
  result.times.store_ns += answer.times.store_ns;
  if (!answer.failure.empty() && result.failures.size() < kFailuresKept)
    result.failures.push_back(answer.failure);
}

}  // namespace

ReplayResult replay(const Trace& trace, const ReplayOptions& options) {
  ReplayResult result;
  std::vector<ChildProcess> processes;
  for (unsigned number = 0; number < options.processes; ++number) {
    processes.emplace_back([&options](int requests, int answers) { serve(options, requests, answers); });
  }
  const uint64_t begin = now_ns();
  for (size_t number = 0; number < trace.requests.size(); ++number) {
    const std::vector<uint64_t>& blocks = trace.requests[number];
    ChildProcess& process = processes[number % processes.size()];
    std::string request;
    put(request, blocks.data(), blocks.size());
    const bool asked = process.ask(request);
    const auto answer = asked ? process.answer(kRequestDeadline) : std::nullopt;
    if (!answer) {
      result.failures.push_back("no answer to request " + std::to_string(number));
      break;
    }
    add(result, blocks, decode(*answer));
  }
  result.wall_ns = now_ns() - begin;
  for (ChildProcess& process : processes) {
    const std::string end = process.finish(kRequestDeadline);
    if (!end.empty()) result.failures.push_back("client process: " + end);
  }
  return result;
}

}  // namespace kvcachefs::clients
