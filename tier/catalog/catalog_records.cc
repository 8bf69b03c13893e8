#include "tier/catalog/catalog_records.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/checksum.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs::records {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr size_t kCheckOffset = 4;
constexpr size_t kNamesOffset = kHeadBytes;
constexpr size_t kModeOffset = kHeadBytes + 4;

template <class Number>
void put(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Number>
void put_at(std::string& out, size_t offset, Number number) {
  std::memcpy(&out[offset], &number, sizeof number);
}

template <class Number>
Number number_at(std::string_view bytes, size_t offset) {
  Number number;
  std::memcpy(&number, &bytes[offset], sizeof number);
  return number;
}

// A Reader takes a record apart from front to back; past its end every value is 0 and `ok` is false.
struct Reader {
  std::string_view bytes;
  size_t at = 0;
  bool ok = true;

  template <class Number>
  Number number() {
    if (!holds(sizeof(Number))) return 0;
    at += sizeof(Number);
    return number_at<Number>(bytes, at - sizeof(Number));
  }
  std::string_view text(size_t size) {
    if (!holds(size)) return {};
    at += size;
    return bytes.substr(at - size, size);
  }
  bool holds(size_t size) { return ok = ok && size <= bytes.size() - at; }
  bool done() const { return ok && at == bytes.size(); }
};

// The check of a record, computed as if the check in it were 0.
uint32_t check_of(std::string_view key, std::string_view record) {
  // Names and most other records are hashed in one piece, because a Hasher would cost more than hashing them.
  std::array<char, 1024> small;
  std::string large;
  const size_t size = key.size() + record.size();
  char* bytes = small.data();
  if (size > small.size()) {
    large.resize(size);
    bytes = large.data();
  }
  std::copy_n(key.data(), key.size(), bytes);
  std::copy_n(record.data(), record.size(), bytes + key.size());
  std::memset(bytes + key.size() + kCheckOffset, 0, sizeof(uint32_t));
  const Checksum checksum = checksum_of(std::as_bytes(std::span<const char>(bytes, size)));
  return static_cast<uint32_t>(checksum.low ^ checksum.low >> 32);
}

void begin(std::string& out, uint8_t version, uint8_t own_byte, uint16_t own_number) {
  put(out, version);
  put(out, own_byte);
  put(out, own_number);
  put(out, uint32_t{0});
}

void seal(std::string_view key, std::string& record) {
  put_at(record, kCheckOffset, check_of(key, record));
}

bool intact(std::string_view key, std::string_view record, size_t least_bytes, uint8_t version) {
  return record.size() >= least_bytes && static_cast<uint8_t>(record[0]) == version &&
         number_at<uint32_t>(record, kCheckOffset) == check_of(key, record);
}

bool is_node(uint64_t id, std::string_view record) {
  return id < kCatalogIdLimit && intact(id_key(id), record, kNodeBytes, kNodeVersion);
}

}  // namespace

IdKey id_key(uint64_t id) {
  IdKey key;
  for (size_t byte = 0; byte < sizeof id; ++byte) key.bytes[byte] = static_cast<char>(id >> (56 - 8 * byte));
  return key;
}

std::optional<uint64_t> id_of(std::string_view key) {
  if (key.size() != sizeof(uint64_t)) return std::nullopt;
  uint64_t id = 0;
  for (const char byte : key) id = id << 8 | static_cast<unsigned char>(byte);
  return id;
}

NameKey::NameKey(uint64_t parent, std::string_view name) : size(8 + name.size()) {
  KVCACHEFS_CHECK(name.size() <= kNameMaxBytes);
  std::ranges::copy(id_key(parent).bytes, bytes.begin());
  std::ranges::copy(name, bytes.begin() + 8);
}

std::optional<CatalogName> name_of(std::string_view key) {
  if (key.size() <= 8 || key.size() > 8 + kNameMaxBytes) return std::nullopt;
  const std::string_view name = key.substr(8);
  // A forged catalog must not lead out of the pool's tree.
  if (name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != std::string_view::npos)
    return std::nullopt;
  return CatalogName{*id_of(key.substr(0, 8)), name};
}

std::string encode_name(std::string_view key, uint64_t id) {
  std::string record;
  record.reserve(kNameBytes);
  begin(record, kNameVersion, 0, 0);
  put(record, id);
  seal(key, record);
  return record;
}

std::optional<uint64_t> decode_name(std::string_view key, std::string_view record) {
  if (record.size() != kNameBytes || !intact(key, record, kNameBytes, kNameVersion)) return std::nullopt;
  return number_at<uint64_t>(record, kHeadBytes);
}

std::string encode_node(const CatalogNode& node, uint32_t names) {
  std::string record;
  record.reserve(kNodeBytes + node.link_target.size());
  const bool has_changed = node.changed.tv_sec != 0;
  begin(record, kNodeVersion, node.pinned ? kNodePinned : 0,
        static_cast<uint16_t>(node.xattrs.size() + (has_changed ? 1 : 0)));
  put(record, names);
  put(record, node.mode);
  put(record, node.uid);
  put(record, node.gid);
  put(record, node.device);
  put(record, static_cast<int64_t>(node.accessed.tv_sec));
  put(record, static_cast<int64_t>(node.modified.tv_sec));
  put(record, static_cast<uint32_t>(node.accessed.tv_nsec));
  put(record, static_cast<uint32_t>(node.modified.tv_nsec));
  put(record, static_cast<uint32_t>(node.link_target.size()));
  record += node.link_target;
  for (const auto& [name, value] : node.xattrs) {
    put(record, static_cast<uint16_t>(name.size()));
    put(record, static_cast<uint32_t>(value.size()));
    record += name;
    record += value;
  }
  if (has_changed) {
    put(record, static_cast<uint16_t>(kChangedXattr.size()));
    put(record, static_cast<uint32_t>(kChangedBytes));
    record += kChangedXattr;
    put(record, static_cast<int64_t>(node.changed.tv_sec));
    put(record, static_cast<uint32_t>(node.changed.tv_nsec));
  }
  seal(id_key(node.id), record);
  return record;
}

std::optional<NodeFacts> node_facts(uint64_t id, std::string_view record) {
  if (!is_node(id, record)) return std::nullopt;
  return NodeFacts{number_at<uint32_t>(record, kNamesOffset), number_at<uint32_t>(record, kModeOffset)};
}

void set_names(uint64_t id, std::string& record, uint32_t names) {
  KVCACHEFS_CHECK(record.size() >= kNodeBytes);
  put_at(record, kNamesOffset, names);
  seal(id_key(id), record);
}

bool decode_node(uint64_t id, std::string_view record, CatalogNode& node) {
  if (!is_node(id, record)) return false;
  Reader reader{.bytes = record, .at = 1};
  const auto flags = reader.number<uint8_t>();
  const auto xattrs = reader.number<uint16_t>();
  reader.at = kModeOffset;
  node.id = id;
  node.pinned = (flags & kNodePinned) != 0;
  node.mode = reader.number<uint32_t>();
  node.uid = reader.number<uint32_t>();
  node.gid = reader.number<uint32_t>();
  node.device = reader.number<uint64_t>();
  node.accessed.tv_sec = reader.number<int64_t>();
  node.modified.tv_sec = reader.number<int64_t>();
  node.accessed.tv_nsec = reader.number<uint32_t>();
  node.modified.tv_nsec = reader.number<uint32_t>();
  node.link_target = reader.text(reader.number<uint32_t>());
  node.xattrs.resize(xattrs);
  for (auto& [name, value] : node.xattrs) {
    const auto name_bytes = reader.number<uint16_t>();
    const auto value_bytes = reader.number<uint32_t>();
    name = reader.text(name_bytes);
    value = reader.text(value_bytes);
    if (!reader.ok) return false;
  }
  node.changed = {};
  if (!node.xattrs.empty() && node.xattrs.back().first == kChangedXattr) {
    const std::string& value = node.xattrs.back().second;
    if (value.size() != kChangedBytes) return false;
    node.changed.tv_sec = number_at<int64_t>(value, 0);
    node.changed.tv_nsec = number_at<uint32_t>(value, sizeof(int64_t));
    node.xattrs.pop_back();
  }
  return reader.done();
}

std::string encode_content(uint64_t id, const CatalogContent& content) {
  std::string record;
  record.reserve(kContentBytes + content.extents.size() * kExtentBytes);
  begin(record, has_holes(content.extents) ? kHoleContentVersion : kContentVersion, 0, 0);
  put(record, content.version);
  put(record, static_cast<uint32_t>(content.extents.size()));
  put(record, content.size_bytes);
  put(record, content.checksum.low);
  put(record, content.checksum.high);
  for (const Extent& extent : content.extents) {
    put(record, extent.start);
    put(record, extent.count);
  }
  seal(id_key(id), record);
  return record;
}

bool decode_content(uint64_t id, std::string_view record, CatalogContent& content) {
  const bool may_have_holes = !record.empty() && static_cast<uint8_t>(record[0]) == kHoleContentVersion;
  if (!intact(id_key(id), record, kContentBytes, may_have_holes ? kHoleContentVersion : kContentVersion))
    return false;
  Reader reader{.bytes = record, .at = kHeadBytes};
  content.version = reader.number<uint32_t>();
  const auto extents = reader.number<uint32_t>();
  content.size_bytes = reader.number<uint64_t>();
  content.checksum.low = reader.number<uint64_t>();
  content.checksum.high = reader.number<uint64_t>();
  if (record.size() != kContentBytes + uint64_t{extents} * kExtentBytes) return false;
  content.extents.resize(extents);
  for (Extent& extent : content.extents) {
    extent.start = reader.number<uint64_t>();
    extent.count = reader.number<uint64_t>();
    if (extent.count == 0 || extent.start + extent.count < extent.start) return false;
    if (is_hole(extent) && !may_have_holes) return false;
  }
  return reader.done();
}

}  // namespace kvcachefs::records
