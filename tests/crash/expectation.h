// What a pool must hold now, and what it may hold after a loss of power, told naively. One thread. Throws
// Violation (tests/crash/world.h) where what is found cannot be.
//
// The rules:
//   - A moment counts up with each change. What was called for at a moment and then acknowledged is durable:
//     after a crash each name, content and set of attributes is as it was then, or as it was at any time
//     since, nothing else. Of what was never acknowledged all that ever was may be there, or nothing.
//   - A durable object has at least one of its names, unless it lost its last one since; it never has more
//     than it had at one time.
//   - What replaces a durable file under its name leaves the old one there or is there itself.
//   - Under a name it got after it was cut to nothing, a file shows no content of before that; it may be
//   lost.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcachefs::test {

struct Place {
  uint64_t directory = 0;  // the id of an object
  std::string name;
  auto operator<=>(const Place&) const = default;
};

struct Attributes {
  mode_t mode = 0;
  std::string mark;  // of an xattr
  bool operator==(const Attributes&) const = default;
};

// All that a value was since it was last durable; the last is what it is.
template <class Value>
class History {
 public:
  void add(uint64_t moment, Value value) { states_.push_back({moment, std::move(value)}); }
  void was_durable_at(uint64_t moment) {
    while (states_.size() > 1 && states_[1].moment <= moment) states_.pop_front();
  }
  bool may_be(const Value& value) const {
    for (const auto& state : states_)
      if (state.value == value) return true;
    return false;
  }
  // It was that at the moment, or at any time since.
  bool may_be_since(uint64_t moment, const Value& value) const {
    for (size_t index = 0; index < states_.size(); ++index) {
      const bool ended = index + 1 < states_.size() && states_[index + 1].moment <= moment;
      if (!ended && states_[index].value == value) return true;
    }
    return false;
  }
  uint64_t first_moment_of(const Value& value) const {
    for (const auto& state : states_)
      if (state.value == value) return state.moment;
    return 0;
  }
  bool empty() const { return states_.empty(); }
  size_t size() const { return states_.size(); }
  const Value& now() const { return states_.back().value; }

 private:
  struct State {
    uint64_t moment = 0;
    Value value;
  };
  std::deque<State> states_;
};

enum class ObjectKind : uint8_t { kFile, kDirectory };

struct Object {
  uint64_t id = 0;
  ObjectKind kind = ObjectKind::kFile;
  History<std::string> content;
  History<Attributes> attributes;
  std::set<Place> names;
  size_t names_taken = 0;            // by files that the disk may not have got: it may still have these
  size_t most_names = 0;             // at one time, since it was last durable
  uint64_t names_changed = 0;        // the moment
  uint64_t durable_at = 0;           // 0: never
  std::vector<uint64_t> emptied_at;  // the moments when it was cut to nothing
  bool gone = false;                 // it has lost its last name
  timespec modified{};               // as of a clean stop; zeros: not known
  // In the life that runs.
  uint64_t ino = 0;
  uint64_t lookups = 0;
  unsigned opens = 0;
  unsigned writers = 0;
};

// One name that a walk of the pool has shown. A file with several is there several times.
struct Found {
  Place place;
  uint64_t id = 0;
  ObjectKind kind = ObjectKind::kFile;
  Attributes attributes;
  std::string content;
  uint64_t ino = 0;
  uint64_t lookups = 0;  // told the pool for this name
  bool unread = false;   // it was discarded meanwhile
  timespec modified{};
};

class Expectation {
 public:
  static constexpr uint64_t kRoot = 1;
  static constexpr uint64_t kNothing = 0;

  Expectation();
  uint64_t moment() const { return moment_; }
  uint64_t next_id() const { return last_id_ + 1; }  // of what make() makes next
  Object& object(uint64_t id);
  Object* by_ino(uint64_t ino);
  uint64_t at(const Place& place) const;  // kNothing: no such name
  const std::map<Place, uint64_t>& names() const { return names_; }
  std::map<uint64_t, Object>& objects() { return objects_; }
  bool is_empty(uint64_t directory) const;
  std::vector<Place> empty_places(uint64_t directory) const;  // where something was once

  Object& make(ObjectKind kind, const Place& place, Attributes attributes, uint64_t ino);
  void set_content(Object& object, std::string content);
  void empty(Object& object);
  void set_attributes(Object& object, Attributes attributes);
  void link(Object& object, const Place& place);
  void unlink(const Place& place);  // of a file's last name or a directory: it is gone
  void rename(const Place& from, const Place& to);
  void exchange(const Place& a, const Place& b);

  // What was so at that moment is durable.
  void durable(Object& object, uint64_t moment, const std::set<Place>& its_names);
  void durable(const Place& place, uint64_t moment);  // as a name alone: what has it, or that nothing has

  // After a crash, or without one: then nothing may differ from what it was last. From here on what was found
  // is what is there, and durable.
  void check(const std::vector<Found>& found, bool faulty) const;
  void check_now(const std::vector<Found>& found) const;
  void forget_life();  // inodes have other numbers from here on
  void begin_again(const std::vector<Found>& found);

 private:
  void bind(const Place& place, uint64_t id);
  void check_name(const Found& found) const;
  std::string text(const Place& place) const;

  uint64_t moment_ = 1;
  uint64_t last_id_ = kRoot;
  std::map<uint64_t, Object> objects_;
  std::map<Place, uint64_t> names_;
  std::map<Place, History<uint64_t>> bindings_;
};

}  // namespace kvcachefs::test
