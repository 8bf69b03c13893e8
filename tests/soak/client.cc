#include "tests/soak/client.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace kvcachefs::soak {
namespace {

constexpr rlim_t kDescriptors = 2048;
constexpr int kHeldAtMost = 600;

Record* record_of_signals = nullptr;
int number_of_signals = 0;

void died_of(int signal) {
  const ClientState& its = record_of_signals->client(number_of_signals);
  record_of_signals->fail("client " + std::to_string(number_of_signals) + " died of signal " +
                              std::to_string(signal) + " in `" + its.action.load() + "`",
                          true);
  ::_exit(3);
}

void become(uid_t uid) {
  const rlimit few{kDescriptors, kDescriptors};
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) throw std::runtime_error("setrlimit");
  if (uid == 0) return;
  if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0)
    throw std::runtime_error("cannot become a user");
}

std::vector<Action> all_actions(bool is_root) {
  std::vector<Action> all;
  for (const auto* some : {&entry_actions(), &own_file_actions(), &name_actions(), &attribute_actions(),
                           &holding_actions(), &control_actions()})
    for (const Action& action : *some)
      if (is_root || !action.is_roots) all.push_back(action);
  return all;
}

}  // namespace

File Client::open(Call kind, const std::string& path, int flags, mode_t mode) {
  return File(
      static_cast<int>(call(kind, path, [&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); })));
}

void Client::close(File& file, std::string_view what) {
  if (file.fd() >= 0) call(Call::kClose, what, [&] { return ::close(file.release()); });
}

long Client::make(const std::string& directory, mode_t mode) {
  return call(Call::kMakeDirectory, directory, [&] { return ::mkdir(directory.c_str(), mode); });
}

void Client::let_go() {
  while (!held.empty() && (held.size() > kHeldAtMost || random_.one_in(8))) held.pop_front();
  if (random_.one_in(4)) large = File(-1);
  while (watches.size() > 16) watches.pop_front();
  while (slow_writers.size() > 12) slow_writers.pop_front();
  while (listings.size() > 12) {
    ::closedir(listings.front().directory);
    listings.pop_front();
  }
}

void Client::run() {
  const std::vector<Action> all = all_actions(uid_ == 0);
  unsigned weights = 0;
  for (const Action& action : all) weights += action.weight;
  ClientState& state = record_.client(number_);
  while (goes_on()) {
    uint64_t draw = random_.below(weights);
    const Action* action = all.data();
    while (draw >= action->weight) draw -= (action++)->weight;
    state.action = action->name;
    action->act(*this);
    ++state.actions;
    let_go();
  }
}

pid_t fork_client(Record& record, const Place& place, int number, uid_t uid, uint64_t seed) {
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("no process for a client");
  if (pid > 0) return pid;
  int status = 0;
  try {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    record_of_signals = &record;
    number_of_signals = number;
    for (const int signal : {SIGBUS, SIGSEGV}) ::signal(signal, died_of);
    become(uid);
    ::umask(0);
    Client(record, place, number, uid, seed).run();
  } catch (const std::exception& error) {
    record.fail("client " + std::to_string(number) + " in `" + record.client(number).action.load() +
                    "`: " + error.what(),
                true);
    status = 1;
  }
  ::_exit(status);
}

}  // namespace kvcachefs::soak
