#include "tier/disk/catalog_names.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "alloc/tree_name.h"

namespace kvcachefs {
namespace {

constexpr size_t kXattrListBytes = 64 << 10;  // XATTR_LIST_MAX and XATTR_SIZE_MAX, linux/limits.h
constexpr size_t kUsualListBytes = 256;

Result<std::vector<std::pair<std::string, std::string>>> stored_xattrs_of(int fd) {
  std::vector<std::pair<std::string, std::string>> result;
  // Because most files have only the daemon's own xattrs and a takeover lists the xattrs of every file of a
  // pool, the buffer is small at first: to zero a large one takes longer than the calls.
  std::vector<char> names(kUsualListBytes);
  auto length = sys::list_xattr(fd, names);
  if (!length && length.error().code == ERANGE) {
    names.resize(kXattrListBytes);
    length = sys::list_xattr(fd, names);
  }
  if (!length) return length.error().code == EOPNOTSUPP ? result : Result<decltype(result)>(pass(length));
  std::vector<char> value;
  for (size_t at = 0; at < *length; at += std::strlen(&names[at]) + 1) {
    if (std::string_view(&names[at]).starts_with(kOwnXattrs)) continue;
    value.resize(kXattrListBytes);
    auto size = sys::get_xattr(fd, &names[at], value);
    if (size) result.emplace_back(&names[at], std::string(value.data(), *size));
  }
  return result;
}

// An entry is stale if the catalog has a content of it that its user has done away with. The caller holds the
// entry's shard.
bool is_stale(const Entry& entry) {
  return entry.disk.node_id != 0 && entry.disk.emptied;
}

}  // namespace

CatalogNode describe_attributes(const struct stat& shown, uint64_t id, bool pinned) {
  return {.id = id,
          .mode = shown.st_mode,
          .uid = shown.st_uid,
          .gid = shown.st_gid,
          .device = shown.st_rdev,
          .accessed = shown.st_atim,
          .modified = shown.st_mtim,
          .changed = shown.st_ctim,
          .pinned = pinned,
          .link_target = {},
          .xattrs = {}};
}

Result<CatalogNode> describe_inode(int fd, const struct stat& shown, uint64_t id, bool pinned) {
  CatalogNode node = describe_attributes(shown, id, pinned);
  if (S_ISLNK(shown.st_mode)) {
    auto target = sys::read_link(fd);
    if (!target) return pass(target);
    node.link_target = std::move(*target);
    // Reading the link was an access that no user made, so the access time is put back.
    auto after = sys::stat_of(fd);
    if (after &&
        (after->st_atim.tv_sec != node.accessed.tv_sec || after->st_atim.tv_nsec != node.accessed.tv_nsec))
      (void)sys::change_times(fd, {node.accessed, timespec{0, UTIME_OMIT}});
  }
  auto xattrs = stored_xattrs_of(fd);
  if (!xattrs) return pass(xattrs);
  node.xattrs = std::move(*xattrs);
  return node;
}

uint64_t CatalogNames::known_id(uint64_t ino) const {
  if (ino == arena_.tree().ino) return kCatalogRoot;
  MutexLock lock(mutex_);
  auto found = known_.find(ino);
  return found == known_.end() ? 0 : found->second.id;
}

uint64_t CatalogNames::id_of(const Entry& entry) const {
  return entry.is_file() ? entry.disk.node_id : known_id(entry.policy.ino);
}

uint64_t CatalogNames::known_directory(int directory) const {
  if (directory == arena_.tree_fd()) return kCatalogRoot;
  auto attributes = sys::stat_of(directory);
  return attributes ? known_id(attributes->st_ino) : 0;
}

void CatalogNames::append(CatalogChange change) const {
  std::vector<CatalogChange> changes;
  changes.push_back(std::move(change));
  store_.log().append(std::move(changes));
}

bool CatalogNames::unshadow(const Place& place) {
  MutexLock lock(mutex_);
  return shadowed_.erase(place) > 0;
}

void CatalogNames::withhold(const Entry& entry, std::vector<CatalogChange>& changes) {
  const uint64_t id = entry.disk.node_id;
  MutexLock lock(mutex_);
  if (withheld_.insert(id).second) changes.push_back(PutName{kCatalogWithheld, std::to_string(id), id});
}

size_t CatalogNames::withheld() const {
  MutexLock lock(mutex_);
  return withheld_.size();
}

Result<CatalogNames::Place> CatalogNames::place_of(int fd) {
  auto found = find_name(arena_, fd);
  if (!found) return pass(found);
  auto id = found->is_deep ? Result<uint64_t>(known_directory(found->parent.get()))
                           : put_directories(found->directory);
  if (!id) return pass(id);
  if (*id == 0) return fail(ENAMETOOLONG);
  return Place{*id, std::move(found->name)};
}

Result<uint64_t> CatalogNames::put_directory(int directory) {
  auto attributes = sys::stat_of(directory);
  if (!attributes) return pass(attributes);
  if (const uint64_t id = known_id(attributes->st_ino); id != 0) return id;
  auto place = place_of(directory);
  if (!place) return pass(place);
  return put_as(place->first, place->second, directory, attributes->st_ino);
}

// put_directories() resolves the path from the root down: while tree_ is held, no directory's path changes.
Result<uint64_t> CatalogNames::put_directories(std::string_view path) {
  uint64_t id = kCatalogRoot;
  UniqueFd above;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    const std::string name(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
    auto directory =
        sys::open_at(above ? above.get() : arena_.tree_fd(), name.c_str(), O_PATH | O_NOFOLLOW | O_DIRECTORY);
    auto attributes = directory ? sys::stat_of(directory->get()) : pass(directory);
    if (!attributes) return pass(attributes);
    const uint64_t known = known_id(attributes->st_ino);
    auto put = known != 0 ? Result<uint64_t>(known) : put_as(id, name, directory->get(), attributes->st_ino);
    if (!put) return put;
    id = *put;
    above = std::move(*directory);
  }
  return id;
}

Result<uint64_t> CatalogNames::put_as(uint64_t parent, const std::string& name, int fd, uint64_t ino) {
  const uint64_t id = store_.new_id();
  auto attributes = sys::stat_of(fd);
  if (!attributes) return pass(attributes);
  // The ctime is kept before the inode is read: reading a link moves its times.
  KeptCtime kept;
  keep_ctime(kept, fd, marks_);
  auto node = describe_inode(fd, *attributes, id, false);
  if (!node) return pass(node);
  std::vector<CatalogChange> changes;
  changes.push_back(PutNode{std::move(*node)});
  changes.push_back(PutName{parent, name, id});
  store_.log().append(std::move(changes));
  known(ino, id, fd, kept);
  return id;
}

void CatalogNames::known(uint64_t ino, uint64_t id, int fd, KeptCtime kept) {
  // A successor that does not find the mark gives the inode another number, and the catalog's node is
  // dropped.
  if (fd >= 0 && marks_)
    (void)put_copy_mark(fd, {.state = CopyMark::State::kNone, .node_id = id, .content = {}});
  MutexLock lock(mutex_);
  known_[ino] = {.id = id, .kept = kept};
}

void CatalogNames::show(uint64_t ino, struct stat& attributes) const {
  MutexLock lock(mutex_);
  if (const auto found = known_.find(ino); found != known_.end()) show_ctime(found->second.kept, attributes);
}

void CatalogNames::touched(uint64_t ino, int fd) {
  MutexLock lock(mutex_);
  if (const auto found = known_.find(ino); found != known_.end())
    forget_ctime(found->second.kept, fd, marks_);
}

void CatalogNames::known_shadowed(Place place) {
  MutexLock lock(mutex_);
  shadowed_.insert(std::move(place));
}

void CatalogNames::known_links(uint64_t ino, std::set<Place> places) {
  MutexLock lock(mutex_);
  links_[ino].merge(places);
}

bool CatalogNames::can_describe(int fd) const {
  const auto found = find_name(arena_, fd);
  const bool has_place = found ? !found->is_deep || known_directory(found->parent.get()) != 0
                               : found.error().code != ENAMETOOLONG;
  return has_place && stored_xattrs_of(fd).has_value();
}

Result<std::vector<CatalogChange>> CatalogNames::introduce(Entry& entry, int fd) {
  const uint64_t ino = entry.policy.ino;
  MutexLock tree(tree_);
  uint64_t id = entry.disk.node_id != 0 ? entry.disk.node_id : promised_number(copy_mark_of(fd));
  if (id == 0) id = store_.new_id();
  auto shown = sys::stat_of(fd);
  if (!shown) return pass(shown);
  show_ctime(entry.kept, *shown);
  auto node = describe_inode(fd, *shown, id, entry.pinned);
  if (!node) return pass(node);
  std::vector<CatalogChange> changes;
  changes.push_back(PutNode{std::move(*node)});

  std::set<Place> places;
  {
    MutexLock lock(mutex_);
    if (auto found = links_.find(ino); found != links_.end()) places = found->second;
  }
  if (places.empty() && entry.disk.node_id == 0) {
    auto place = place_of(fd);
    if (!place) return pass(place);
    places.insert(std::move(*place));
  }
  for (const Place& place : places) {
    unshadow(place);
    changes.push_back(PutName{place.first, place.second, id});
  }
  entry.disk.node_id = id;
  MutexLock lock(mutex_);
  links_.erase(ino);
  if (withheld_.erase(id) > 0) changes.push_back(DropName{kCatalogWithheld, std::to_string(id)});
  return changes;
}

void CatalogNames::changed(const Entry& entry, int fd, const struct stat& shown, bool even_xattrs) {
  const uint64_t id = id_of(entry);
  if (id == 0 || entry.removed) return;
  if (!even_xattrs) return append(PutNode{describe_attributes(shown, id, entry.pinned), true});
  if (auto node = describe_inode(fd, shown, id, entry.pinned)) append(PutNode{std::move(*node)});
}

void CatalogNames::made(const Entry& entry, int directory, const std::string& name) {
  MutexLock tree(tree_);
  put(entry.policy.ino, directory, name);
}

void CatalogNames::keep(int directory, const std::string& name) {
  MutexLock tree(tree_);
  auto attributes = sys::stat_at(directory, name.c_str());
  if (!attributes || S_ISREG(attributes->st_mode) || known_id(attributes->st_ino) != 0) return;
  put(attributes->st_ino, directory, name);
}

void CatalogNames::put(uint64_t ino, int directory, const std::string& name) {
  auto parent = put_directory(directory);
  auto fd = sys::open_at(directory, name.c_str(), O_PATH | O_NOFOLLOW);
  if (!parent || !fd) return;
  unshadow({*parent, name});
  (void)put_as(*parent, name, fd->get(), ino);
}

void CatalogNames::keep_directory(int directory) {
  MutexLock tree(tree_);
  (void)put_directory(directory);
}

void CatalogNames::removed(const Entry& entry, int directory, const std::string& name) {
  const uint64_t parent = known_directory(directory);
  if (parent == 0) return;
  const Place place{parent, name};
  {
    MutexLock lock(mutex_);
    if (auto found = links_.find(entry.policy.ino); found != links_.end()) found->second.erase(place);
  }
  const bool was_shadowed = unshadow(place);
  if (!was_shadowed && id_of(entry) == 0) return;
  std::vector<CatalogChange> changes;
  if (is_stale(entry)) withhold(entry, changes);  // the catalog may lack the file's other names
  changes.push_back(DropName{parent, name});
  store_.log().append(std::move(changes));
}

void CatalogNames::gone(const Entry& entry) {
  MutexLock lock(mutex_);
  known_.erase(entry.policy.ino);
  links_.erase(entry.policy.ino);
  if (withheld_.erase(entry.disk.node_id) > 0)
    append(DropName{kCatalogWithheld, std::to_string(entry.disk.node_id)});
}

void CatalogNames::renamed(const Entry& entry, int from, const std::string& old_name, int to,
                           const std::string& new_name, const Entry* replaced) {
  const uint64_t id = id_of(entry);
  const uint64_t from_id = known_directory(from);
  if (replaced != nullptr) {
    const Place place{known_directory(to), new_name};
    MutexLock lock(mutex_);
    if (auto found = links_.find(replaced->policy.ino); found != links_.end()) found->second.erase(place);
  }
  std::vector<CatalogChange> changes;
  // The catalog may lack the replaced file's other names, while this one goes: now, or with the content of
  // the newer file.
  if (replaced != nullptr && is_stale(*replaced)) withhold(*replaced, changes);
  const bool stale = is_stale(entry);
  if (id != 0 && !stale) {
    auto to_id = put_directory(to);
    if (!to_id) return;
    unshadow({*to_id, new_name});
    changes.push_back(PutName{*to_id, new_name, id});
    if (from_id != 0) changes.push_back(DropName{from_id, old_name});
    return store_.log().append(std::move(changes));
  }
  if (stale) withhold(entry, changes);
  const bool shadowed = from_id != 0 && unshadow({from_id, old_name});
  if (shadowed || (stale && from_id != 0)) changes.push_back(DropName{from_id, old_name});
  store_.log().append(std::move(changes));
  const bool had_links = stale || [&] {
    MutexLock lock(mutex_);
    return links_.contains(entry.policy.ino);
  }();
  const auto put_id = had_links ? put_directory(to) : Result<uint64_t>(known_directory(to));
  const uint64_t to_id = put_id ? *put_id : 0;
  const bool replaces_known = replaced != nullptr && id_of(*replaced) != 0;
  if (replaces_known && !entry.is_file()) return append(DropName{to_id, new_name});
  MutexLock lock(mutex_);
  // Until the newer file is on the disk, a crash leaves the older one, which was whole and had this name.
  if (to_id != 0 && replaces_known) shadowed_.insert({to_id, new_name});
  if (!had_links || to_id == 0) return;
  links_[entry.policy.ino].erase({from_id, old_name});
  links_[entry.policy.ino].insert({to_id, new_name});
}

void CatalogNames::exchanged(const Entry& a, const Entry& b, int a_was_in, const std::string& a_name,
                             int b_was_in, const std::string& b_name) {
  const auto a_directory = put_directory(a_was_in);
  const auto b_directory = put_directory(b_was_in);
  if (!a_directory || !b_directory) return;
  const Place a_place{*a_directory, a_name};
  const Place b_place{*b_directory, b_name};
  std::vector<CatalogChange> changes;
  const auto moved = [&](const Entry& entry, const Place& from, const Place& to) {
    unshadow(to);
    const uint64_t id = id_of(entry);
    const bool stale = is_stale(entry);
    if (stale) withhold(entry, changes);
    if (id != 0 && !stale)
      changes.push_back(PutName{to.first, to.second, id});
    else
      changes.push_back(DropName{to.first, to.second});
    MutexLock lock(mutex_);
    if (!stale && !links_.contains(entry.policy.ino)) return;
    links_[entry.policy.ino].erase(from);
    links_[entry.policy.ino].insert(to);
  };
  moved(a, a_place, b_place);
  moved(b, b_place, a_place);
  store_.log().append(std::move(changes));
}

void CatalogNames::before_link(const Entry& entry, int fd) {
  const uint64_t ino = entry.policy.ino;
  if (id_of(entry) != 0) return;
  auto attributes = sys::stat_of(fd);
  if (!attributes || attributes->st_nlink != 1) return;
  auto place = place_of(fd);
  if (!place) return;
  MutexLock lock(mutex_);
  links_[ino].insert(std::move(*place));
}

void CatalogNames::has_link(const Entry& entry, int directory, const std::string& name) {
  MutexLock tree(tree_);
  auto parent = put_directory(directory);
  if (!parent) return;
  MutexLock lock(mutex_);
  links_[entry.policy.ino].insert({*parent, name});
}

void CatalogNames::linked(const Entry& entry, int directory, const std::string& name) {
  auto parent = put_directory(directory);
  if (!parent) return;
  const Place place{*parent, name};
  if (const uint64_t id = id_of(entry); id != 0 && !is_stale(entry)) {
    unshadow(place);
    return append(PutName{place.first, place.second, id});
  }
  MutexLock lock(mutex_);
  links_[entry.policy.ino].insert(place);
}

}  // namespace kvcachefs
