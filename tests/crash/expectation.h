// The content that a pool must hold now and that it may hold after a loss of power, computed naively. One
// thread. Throws Violation (tests/crash/world.h) if the pool's content is impossible.
//
// The rules:
//   - A moment counts up with each change. A state that a client asked to be durable at a moment is durable
//     once that is acknowledged: after a crash each name, content and set of attributes is as it was at that
//     moment or at any time since, nothing else. Before any acknowledgement every earlier state may be there,
//     or none.
//   - A durable object has at least one of its names, unless it lost its last one since; it never has more
//     names than it had at one time.
//   - An object that replaces a durable file under its name leaves the old file there or is there itself.
//   - A file that got a name after it was cut to nothing shows no older content under that name; it may be
//     lost.
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
  std::string mark;  // the value of an xattr
  bool operator==(const Attributes&) const = default;
};

// All values since the last durable one; the last is the present one.
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
  // Whether the value was `value` at the moment, or at any time since.
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
  size_t names_taken = 0;            // taken by files that the disk may lack: the object may still have them
  size_t most_names = 0;             // the most names at one time, since it was last durable
  uint64_t names_changed = 0;        // the moment of the last change
  uint64_t durable_at = 0;           // 0: never
  std::vector<uint64_t> emptied_at;  // the moments when it was cut to nothing
  bool gone = false;                 // it lost its last name
  timespec modified{};               // at a clean stop; zeros: not known
  // The following members are those of the present life.
  uint64_t ino = 0;
  uint64_t lookups = 0;
  unsigned opens = 0;
  unsigned writers = 0;
};

// One name that a walk of the pool has shown. A file with several names is found several times.
struct Found {
  Place place;
  uint64_t id = 0;
  ObjectKind kind = ObjectKind::kFile;
  Attributes attributes;
  std::string content;
  uint64_t ino = 0;
  uint64_t lookups = 0;  // how many the pool counts for this name
  bool unread = false;   // the object was discarded meanwhile
  timespec modified{};
};

class Expectation {
 public:
  static constexpr uint64_t kRoot = 1;
  static constexpr uint64_t kNothing = 0;

  Expectation();
  uint64_t moment() const { return moment_; }
  uint64_t next_id() const { return last_id_ + 1; }  // the id that make() gives next
  Object& object(uint64_t id);
  Object* by_ino(uint64_t ino);
  uint64_t at(const Place& place) const;  // kNothing: no such name
  const std::map<Place, uint64_t>& names() const { return names_; }
  std::map<uint64_t, Object>& objects() { return objects_; }
  bool is_empty(uint64_t directory) const;
  std::vector<Place> empty_places(uint64_t directory) const;  // names that once had an object

  Object& make(ObjectKind kind, const Place& place, Attributes attributes, uint64_t ino);
  void set_content(Object& object, std::string content);
  void empty(Object& object);
  void set_attributes(Object& object, Attributes attributes);
  void link(Object& object, const Place& place);
  void unlink(const Place& place);  // the object is gone if this is a file's last name, or a directory
  void rename(const Place& from, const Place& to);
  void exchange(const Place& a, const Place& b);

  // The state of that moment is durable.
  void durable(Object& object, uint64_t moment, const std::set<Place>& its_names);
  void durable(const Place& place, uint64_t moment);  // only the name: which object has it, or none

  // check() is for the time after a crash; check_now() for a pool without a crash, where nothing may differ
  // from the last state. After begin_again() the content found is the present and durable one.
  void check(const std::vector<Found>& found, bool faulty) const;
  void check_now(const std::vector<Found>& found) const;
  void forget_life();  // inodes get other numbers afterwards
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
