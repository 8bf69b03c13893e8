#include "tests/crash/expectation.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/crash/world.h"

namespace kvcachefs::test {
namespace {

std::string brief(std::string_view content) {
  return fmt::format("{} bytes, {:016x}", content.size(),
                     checksum_of(std::as_bytes(std::span(content.data(), content.size()))).low);
}

}  // namespace

Expectation::Expectation() {
  Object& root = objects_[kRoot];
  root.id = kRoot;
  root.kind = ObjectKind::kDirectory;
  root.durable_at = moment_;
}

Object& Expectation::object(uint64_t id) {
  return objects_.at(id);
}

Object* Expectation::by_ino(uint64_t ino) {
  for (auto& [id, object] : objects_)
    if (object.ino == ino) return &object;
  return nullptr;
}

uint64_t Expectation::at(const Place& place) const {
  const auto found = names_.find(place);
  return found == names_.end() ? kNothing : found->second;
}

bool Expectation::is_empty(uint64_t directory) const {
  return std::ranges::none_of(names_, [&](const auto& name) { return name.first.directory == directory; });
}

std::vector<Place> Expectation::empty_places(uint64_t directory) const {
  std::vector<Place> result;
  for (const auto& [place, history] : bindings_)
    if (place.directory == directory && !names_.contains(place)) result.push_back(place);
  return result;
}

void Expectation::bind(const Place& place, uint64_t id) {
  History<uint64_t>& history = bindings_[place];
  if (history.empty()) history.add(0, kNothing);
  history.add(moment_, id);
  if (id == kNothing)
    names_.erase(place);
  else
    names_[place] = id;
}

Object& Expectation::make(ObjectKind kind, const Place& place, Attributes attributes, uint64_t ino) {
  const uint64_t id = ++last_id_;
  Object& object = objects_[id];
  object.id = id;
  object.kind = kind;
  object.ino = ino;
  ++moment_;
  object.attributes.add(moment_, std::move(attributes));
  object.content.add(moment_, "");
  link(object, place);
  return object;
}

void Expectation::set_content(Object& object, std::string content) {
  object.content.add(++moment_, std::move(content));
}

void Expectation::empty(Object& object) {
  set_content(object, "");
  object.emptied_at.push_back(moment_);
}

void Expectation::set_attributes(Object& object, Attributes attributes) {
  object.attributes.add(++moment_, std::move(attributes));
}

void Expectation::link(Object& object, const Place& place) {
  object.names_changed = ++moment_;
  bind(place, object.id);
  object.names.insert(place);
  object.most_names = std::max(object.most_names, object.names.size());
}

void Expectation::unlink(const Place& place) {
  Object& object = objects_.at(names_.at(place));
  object.names_changed = ++moment_;
  bind(place, kNothing);
  object.names.erase(place);
  if (object.names.empty()) object.gone = true;
}

void Expectation::rename(const Place& from, const Place& to) {
  Object& object = objects_.at(names_.at(from));
  const uint64_t replaced = at(to);
  if (replaced == object.id) return;  // two names of one file stay as they are
  object.names_changed = ++moment_;
  if (replaced != kNothing) {
    Object& other = objects_.at(replaced);
    other.names_changed = moment_;
    other.names.erase(to);
    ++other.names_taken;
    if (other.names.empty()) other.gone = true;
  }
  bind(from, kNothing);
  bind(to, object.id);
  object.names.erase(from);
  object.names.insert(to);
}

void Expectation::exchange(const Place& a, const Place& b) {
  Object& first = objects_.at(names_.at(a));
  Object& second = objects_.at(names_.at(b));
  if (&first == &second) return;
  first.names_changed = second.names_changed = ++moment_;
  // An object that the disk has not got yet leaves its place empty.
  bind(a, kNothing);
  bind(b, kNothing);
  bind(b, first.id);
  bind(a, second.id);
  first.names.erase(a);
  second.names.erase(b);
  first.names.insert(b);
  second.names.insert(a);
}

void Expectation::durable(Object& object, uint64_t moment, const std::set<Place>& its_names) {
  object.durable_at = std::max(object.durable_at, moment);
  object.content.was_durable_at(moment);
  object.attributes.was_durable_at(moment);
  for (const Place& place : its_names) {
    durable(place, moment);
    // All directories above it are durable too, as they were then or later; only their existence counts.
    Object& parent = objects_.at(place.directory);
    parent.durable_at = std::max(parent.durable_at, moment);
    for (const Object* above = &parent; above->id != kRoot && above->names_changed <= moment;) {
      Object& next = objects_.at(above->names.begin()->directory);
      next.durable_at = std::max(next.durable_at, moment);
      above = &next;
    }
  }
  // The object may still have a name that another object, which the disk has not got, has taken.
  if (object.names_changed > moment) return;
  object.most_names = object.names.size();
  object.names_taken = 0;
  for (const auto& [place, history] : bindings_)
    if (history.may_be(object.id) && !object.names.contains(place)) ++object.names_taken;
}

void Expectation::durable(const Place& place, uint64_t moment) {
  if (auto found = bindings_.find(place); found != bindings_.end()) found->second.was_durable_at(moment);
}

std::string Expectation::text(const Place& place) const {
  std::string path = place.name;
  const auto found = objects_.find(place.directory);
  if (found == objects_.end() || place.directory == kRoot) return path;
  if (found->second.names.empty()) return fmt::format("({})/{}", place.directory, path);
  return text(*found->second.names.begin()) + "/" + path;
}

void Expectation::check_name(const Found& found) const {
  const auto known = objects_.find(found.id);
  if (known == objects_.end())
    throw Violation(fmt::format("{}: an object {} that never was", text(found.place), found.id));
  const Object& object = known->second;
  const auto binding = bindings_.find(found.place);
  if (binding == bindings_.end() || !binding->second.may_be(found.id))
    throw Violation(fmt::format("{}: shows object {}, which it cannot", text(found.place), found.id));
  if (object.kind != found.kind) throw Violation(text(found.place) + ": of another kind");
  if (!object.attributes.may_be(found.attributes))
    throw Violation(fmt::format("{} (object {}): mode {:o} and mark '{}' are older than what was durable",
                                text(found.place), found.id, found.attributes.mode, found.attributes.mark));
  if (object.kind == ObjectKind::kFile && !found.unread && !object.content.may_be(found.content))
    throw Violation(fmt::format("{} (object {}): {} is none of the {} contents it may have, the last: {}",
                                text(found.place), found.id, brief(found.content), object.content.size(),
                                brief(object.content.now())));
  const uint64_t named_at = binding->second.first_moment_of(found.id);
  const bool of_before = std::ranges::any_of(object.emptied_at, [&](uint64_t emptied_at) {
    return emptied_at < named_at && !object.content.may_be_since(emptied_at, found.content);
  });
  if (of_before && !found.unread)
    throw Violation(fmt::format("{} (object {}): shows {}, of before it was emptied and got the name",
                                text(found.place), found.id, brief(found.content)));
}

void Expectation::check(const std::vector<Found>& found, bool faulty) const {
  std::map<uint64_t, size_t> counts;
  std::map<Place, uint64_t> places;
  for (const Found& each : found) {
    check_name(each);
    ++counts[each.id];
    places[each.place] = each.id;
  }
  for (const auto& [id, count] : counts) {
    const Object& object = objects_.at(id);
    if (count <= std::max<size_t>(object.most_names, 1) + object.names_taken) continue;
    std::string its_names;
    for (const auto& [place, there] : places)
      if (there == id) its_names += fmt::format(" {}/{}", place.directory, place.name);
    throw Violation(
        fmt::format("object {} has the names{}; it had {} at most", id, its_names, object.most_names));
  }
  if (faulty) return;  // damaged entries are discarded
  const auto was_another = [](const Object& object) {
    return std::ranges::any_of(object.emptied_at, [&](uint64_t emptied_at) {
      return emptied_at > object.durable_at && emptied_at < object.names_changed;
    });
  };
  for (const auto& [id, object] : objects_)
    if (object.durable_at != 0 && !object.gone && id != kRoot && !counts.contains(id) && !was_another(object))
      throw Violation(fmt::format("object {} was durable and is lost; it was {}", id,
                                  object.names.empty() ? "" : text(*object.names.begin())));
  for (const auto& [place, history] : bindings_) {
    const auto there = places.find(place);
    const auto last = objects_.find(history.now());
    const bool may_lack = last != objects_.end() && was_another(last->second);
    if (there == places.end() && !history.may_be(kNothing) && !may_lack)
      throw Violation(text(place) + ": a durable name is lost");
  }
}

void Expectation::check_now(const std::vector<Found>& found) const {
  std::map<Place, uint64_t> places;
  for (const Found& each : found) {
    places[each.place] = each.id;
    const auto known = objects_.find(each.id);
    if (known == objects_.end()) throw Violation(text(each.place) + ": an object that never was");
    const Object& object = known->second;
    if (object.attributes.now() != each.attributes) throw Violation(text(each.place) + ": other attributes");
    if (object.kind == ObjectKind::kFile && object.content.now() != each.content)
      throw Violation(fmt::format("{} (object {}): {} instead of {}", text(each.place), each.id,
                                  brief(each.content), brief(object.content.now())));
    if (object.modified.tv_sec != 0 &&
        (object.modified.tv_sec != each.modified.tv_sec || object.modified.tv_nsec != each.modified.tv_nsec))
      throw Violation(text(each.place) + ": another time of modification");
  }
  if (places == names_) return;
  for (const auto& [place, id] : names_)
    if (!places.contains(place)) throw Violation(fmt::format("{} (object {}) is missing", text(place), id));
  for (const auto& [place, id] : places)
    if (at(place) != id) throw Violation(fmt::format("{} shows object {}", text(place), id));
}

void Expectation::forget_life() {
  for (auto& [id, object] : objects_) {
    object.ino = object.lookups = 0;
    object.opens = object.writers = 0;
  }
}

void Expectation::begin_again(const std::vector<Found>& found) {
  const std::map<uint64_t, Object> before = std::exchange(objects_, {});
  names_.clear();
  bindings_.clear();
  ++moment_;
  Object& root = objects_[kRoot];
  root.id = kRoot;
  root.kind = ObjectKind::kDirectory;
  root.durable_at = moment_;
  for (const Found& each : found) {
    Object& object = objects_[each.id];
    object.id = each.id;
    object.kind = each.kind;
    object.ino = each.ino;
    object.lookups += each.lookups;
    if (object.content.empty()) {
      // An object that could not be read comes back with any content it may have had, if its discard is not
      // durable.
      if (each.unread)
        object.content = before.at(each.id).content;
      else
        object.content.add(moment_, each.content);
      object.attributes.add(moment_, each.attributes);
    }
    object.names.insert(each.place);
    object.most_names = object.names.size();
    object.names_changed = object.durable_at = moment_;
    names_[each.place] = each.id;
    bindings_[each.place].add(moment_, each.id);
  }
}

}  // namespace kvcachefs::test
