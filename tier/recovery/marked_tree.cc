#include "tier/recovery/marked_tree.h"

#include <utility>

#include "base/fault_point.h"
#include "base/progress.h"

namespace kvcachefs {

Result<void> MarkedTree::walk(const OnSeveralThreads& on_several_threads) {
  Result<void> noted;
  const auto look = [&](int directory, uint64_t directory_ino, const Child& child) {
    auto done = look_at(directory, directory_ino, child);
    if (done) return;
    MutexLock lock(mutex_);
    noted = std::move(done);
  };
  auto whole = walk_tree(arena_, on_several_threads, look, look);
  return noted ? std::move(whole) : std::move(noted);
}

Result<void> MarkedTree::look_at(int directory, uint64_t directory_ino, const Child& child) {
  if (const int refused = injected_error("look at what is there")) return fail(refused);
  const int flags = child.is_regular ? kReadForFacts : O_PATH | O_NOFOLLOW;
  auto fd = sys::open_at(directory, child.name.c_str(), flags);
  return fd ? note(fd->get(), child.is_regular, {.parent_ino = directory_ino, .name = child.name}) : pass(fd);
}

Result<void> MarkedTree::note(int fd, bool is_file, Place place) {
  auto mark = copy_mark_of(fd);
  if (mark && mark->error != 0) return fail(mark->error);
  if (is_file && (!mark || mark->node_id == 0)) return {};
  auto handle = sys::handle_of(fd);
  auto attributes = sys::stat_of(fd);
  if (!handle) return pass(handle);
  if (!attributes) return pass(attributes);
  if (!mark || mark->node_id == 0) {
    MutexLock lock(mutex_);
    if (S_ISDIR(attributes->st_mode)) unnumbered_[handle->ino] = {*handle, std::move(place)};
    return {};
  }
  if (mark->state == CopyMark::State::kUnreadable) return {};
  const uint64_t id = mark->node_id;
  KeptCtime kept = is_file ? KeptCtime() : adopt_ctime(fd, *attributes, true);
  bool pinned = false;
  if (is_file)
    if (const LockedEntry entry{entries_.shard(handle->ino), handle->ino})
      kept = entry->kept, pinned = entry->pinned;
  show_ctime(kept, *attributes);
  const bool plain = is_file && !has_other_xattrs(fd);
  MutexLock lock(mutex_);
  tier_.store->saw_id(id);
  Node& node = nodes_[id];
  if (node.places.empty()) {
    node.handle = *handle;
    node.mark = std::move(*mark);
    node.is_file = is_file;
    node.attributes = *attributes;
    node.plain = plain;
    node.pinned = pinned;
  }
  node.places.push_back(std::move(place));
  if (is_file) return {};
  ids_[handle->ino] = id;
  tier_.names.known(handle->ino, id, -1, kept);
  return {};
}

Result<CatalogNode> MarkedTree::describe(uint64_t id, const Node& node) const {
  if (node.plain) return describe_attributes(node.attributes, id, node.pinned);
  auto fd = arena_.open(node.handle, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  return describe_inode(fd->get(), node.attributes, id, node.pinned);
}

std::set<CatalogNames::Place> MarkedTree::names_of(const Node& node) {
  std::set<CatalogNames::Place> result;
  for (const Place& place : node.places)
    if (const uint64_t parent = id_of_directory(place.parent_ino); parent != 0)
      result.emplace(parent, place.name);
  return result;
}

std::optional<CatalogNames::Place> MarkedTree::emptied_as(const Node& node) {
  for (const Place& place : node.places)
    if (node.mark.emptied_as == place_hash(place.parent_ino, place.name))
      if (const uint64_t parent = id_of_directory(place.parent_ino); parent != 0)
        return CatalogNames::Place{parent, place.name};
  return std::nullopt;
}

uint64_t MarkedTree::id_of_directory(uint64_t ino) {
  std::vector<uint64_t> way;  // directories without a number, upwards
  for (; !ids_.contains(ino) && unnumbered_.contains(ino); ino = unnumbered_.at(ino).place.parent_ino)
    way.push_back(ino);
  const auto known = ids_.find(ino);
  uint64_t id = known == ids_.end() ? 0 : known->second;
  for (; !way.empty() && id != 0; way.pop_back()) id = number(way.back(), id);
  return id;
}

uint64_t MarkedTree::number(uint64_t ino, uint64_t parent_id) {
  const Unnumbered& directory = unnumbered_.at(ino);
  auto fd = arena_.open(directory.handle, O_RDONLY | O_DIRECTORY);
  if (!fd) return 0;
  const uint64_t id = tier_.store->new_id();
  const auto attributes = sys::stat_of(fd->get());
  if (!attributes) return 0;
  KeptCtime kept;
  keep_ctime(kept, fd->get(), true);
  auto node = describe_inode(fd->get(), *attributes, id, false);
  if (!node) return 0;
  new_directories_.push_back(PutNode{std::move(*node)});
  new_directories_.push_back(PutName{parent_id, directory.place.name, id});
  tier_.names.known(ino, id, fd->get(), kept);
  ids_[ino] = id;
  return id;
}

bool MarkedTree::is_replaced(const CatalogNames::Place& place) const {
  count_step();
  const auto directory = nodes_.find(place.first);
  UniqueFd parent;
  if (place.first != kCatalogRoot) {
    if (directory == nodes_.end() || directory->second.is_file) return false;
    auto opened = arena_.open(directory->second.handle, O_RDONLY | O_DIRECTORY);
    if (!opened) return false;
    parent = std::move(*opened);
  }
  const int parent_fd = parent ? parent.get() : arena_.tree_fd();
  const auto file = sys::open_at(parent_fd, place.second.c_str(), kReadForFacts);
  if (!file) return false;
  const auto attributes = sys::stat_of(file->get());
  if (!attributes || !S_ISREG(attributes->st_mode)) return false;
  const auto mark = copy_mark_of(file->get());
  const auto its = mark ? nodes_.find(mark->node_id) : nodes_.end();
  if (its == nodes_.end() || !its->second.is_file) return true;
  const Node& node = its->second;
  return node.is_dirty() && (!node.seen || (node.emptied && node.emptied_as != place));
}

}  // namespace kvcachefs
