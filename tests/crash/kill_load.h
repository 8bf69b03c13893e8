// Clients of a pool with a daemon that is killed, and what they know of the content that must be there
// afterwards. A KillLoad is one client: one thread at a time. Failure: a contradiction to its knowledge is
// recorded in problems(), in words; a call that fails because the daemon is gone ends the client.
//
// A client knows for each name the outcomes that a crash now may leave (`now`), and those that a crash after
// the next acknowledgement may leave (`after`). They differ because everything that comes before an
// acknowledged change in the catalog's order is durable with that change. A content holds its name, version
// and length, and all its bytes follow from these, so that a torn or foreign content is noticed.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tier/pool_options.h"

namespace kvcachefs::test {

class KillLoad {
 public:
  KillLoad(unsigned client, uint64_t seed) : client_(client), random_(seed) {}

  struct Surroundings {
    std::string pool;  // its directory in the mount
    Durability durability = Durability::kWriteback;
    std::atomic<bool>* killed = nullptr;  // set before the daemon is killed
    std::atomic<bool>* stop = nullptr;
  };
  void run(const Surroundings& surroundings);
  // verify() checks all names against their outcomes; the outcome found is then the only one.
  void verify(const std::string& pool);
  // After an orderly stop every closed file is there.
  void stopped_cleanly();

  const std::vector<std::string>& problems() const { return problems_; }
  uint64_t operations() const { return operations_; }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t refused() const { return refused_; }  // calls that met a full pool
  uint64_t found() const { return found_; }      // entries that the last verify() read

 private:
  static constexpr uint64_t kAbsent = 0;
  using Outcomes = std::set<uint64_t>;  // versions, or kAbsent
  struct Name {
    Outcomes now{kAbsent};
    Outcomes after{kAbsent};
    uint64_t live = kAbsent;  // the version that a reader sees
    bool may_vanish = false;  // no promise was made, and the pool may discard it
    uint64_t moved = 0;       // the version acknowledged under the temporary name; it has one of the two
  };

  std::string path(const std::string& name) const { return surroundings_.pool + "/" + name; }
  std::string directory() const { return "client" + std::to_string(client_); }
  std::string draw_name();
  size_t draw_size();
  void step();
  void store();
  void write_in_place();
  void remove();
  void read();
  void sync_directory();
  bool write_content(const std::string& name, const std::string& told, int flags);
  bool write_all(int fd, const std::string& content);
  bool failed(const std::string& call, const std::string& name);
  void changing(const std::string& name, uint64_t version);
  void acknowledge(const std::string& name);
  void committed();
  void verify_name(const std::string& name, Name& known);
  void problem(const std::string& text);
  std::string history(const std::string& name);
  void note(const std::string& name, const std::string& event);

  // The version to which all of `content` belongs; otherwise `why` says what is wrong.
  uint64_t version_of(const std::string& name, const std::string& content, std::string& why) const;

  const unsigned client_;
  Random random_;
  Surroundings surroundings_;
  std::map<std::string, Name> names_;
  std::map<std::string, std::deque<std::string>> events_;  // the last events of a name and its temporary one
  uint64_t next_version_ = 1;
  bool over_ = false;
  uint64_t last_commit_ = 0;
  std::vector<std::string> problems_;
  uint64_t operations_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t refused_ = 0;
  uint64_t found_ = 0;
};

}  // namespace kvcachefs::test
