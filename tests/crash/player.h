// A Player does to a pool what clients do through the kernel, as a seed draws it, and tells the expectation.
// One thread. Throws what World throws.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/crash/expectation.h"
#include "tests/crash/world.h"

namespace kvcachefs::test {

class Player {
 public:
  struct Rules {
    Durability durability = Durability::kWriteback;
    bool may_discard = false;  // the disk is small, or dirty entries may be lost
    bool flush_fails = false;  // a waiter hears of the failed flush; nothing else may come of it
    bool faulty = false;       // the disk fails by itself
  };

  Player(World& world, Expectation& expectation, uint64_t seed, const Rules& rules)
      : world_(world), expectation_(expectation), random_(seed), rules_(rules) {}

  void operate();  // one operation, and some steps
  // The process dies and another takes over: no client notices, and a waiter that asked gets no answer.
  void take_over();
  void close_all();    // closes all handles; waits for the requests to be durable
  void forget_life();  // the pool is gone, with all open handles
  // After a clean stop all objects are durable as they are. Before the stop note_times() notes their times.
  void note_times();
  void all_durable();
  void check_now();          // checks all objects, read through the pool
  void check_after_crash();  // the same; the kernel of a new life looks every name up

  void note(std::string line);
  const std::vector<std::string>& trace() const { return trace_; }

 private:
  struct Handle {
    uint64_t id = 0;
    uint64_t ino = 0;
    UniqueFd fd;
    bool writer = false;
    bool from_disk = false;
    uint64_t kept = 0;  // the record of this open in Survivors
  };
  struct Asked {
    std::shared_ptr<std::optional<int>> answer;
    uint64_t moment = 0;
    std::vector<std::pair<uint64_t, std::set<Place>>> objects;
    std::vector<Place> places;
  };

  void hear_of_discarded();
  void hear();  // hears of discards and answers
  void step(uint64_t steps_max);

  std::optional<Handle> open(uint64_t ino, bool writer);
  void keep(Handle& handle);
  std::optional<std::string> content(const Handle& handle);
  void close(Handle handle);
  void forget(Object& object);
  void write(Handle& handle, uint64_t offset, uint64_t bytes);

  void create();
  void overwrite();
  void read();
  void truncate();
  void rename();
  void exchange();
  void link();
  void unlink();
  void make_directory();
  void remove_directory();
  void change_attributes();
  void sync();
  void sync_directory();
  void evict();
  void prefetch();
  void pin();
  Waiter ask(Asked asked);
  void wait_for_answers();
  void walk_directory(uint64_t id, uint64_t ino, bool first, std::vector<Found>& found);
  std::vector<Found> walk(bool first);
  Found look_at(int directory, const Place& place, bool first);

  Place draw_place();
  Object* draw(ObjectKind kind);
  Result<Directory> directory(uint64_t id);
  uint64_t ino_of(uint64_t id);
  std::string text(const Place& place) const { return fmt::format("{}/{}", place.directory, place.name); }

  World& world_;
  Expectation& expectation_;
  Random random_;
  const Rules rules_;
  std::vector<Handle> handles_;
  std::vector<Asked> asked_;
  bool deaf_ = false;
  std::set<Place> heard_;
  std::vector<std::string> trace_;
};

}  // namespace kvcachefs::test
