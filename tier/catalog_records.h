// The bytes of the catalog's records (FORMAT.md shows them to people). Any thread; no state. All numbers are
// little-endian, but those in keys, which are big-endian so that they sort as numbers do. Every record has a
// version and a check of its key and bytes. Decoding looks at no byte outside what it is given and answers
// false for anything that encoding does not make.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tier/catalog.h"

namespace kvcachefs::records {

// Of the catalog as a whole, in its setting of this name. A reader refuses a greater one.
constexpr uint32_t kFormat = 1;
constexpr std::string_view kFormatSetting = "catalog.format";
constexpr std::string_view kOwnSettings = "catalog.";

// Every record begins so: version u8, then a byte and a u16 of the record's own, then the check: the low half
// of the XXH3-128 of the key followed by the record with 0 for the check, folded to 32 bits.
constexpr size_t kHeadBytes = 8;

// names:    parent u64 big-endian, name (1 to 255 bytes)  ->  head, id u64
constexpr uint8_t kNameVersion = 1;
constexpr size_t kNameBytes = kHeadBytes + 8;
constexpr size_t kNameMaxBytes = 255;

// nodes:    id u64 big-endian  ->  head (flags u8, xattrs u16), names u32, mode u32, uid u32, gid u32, device
// u64, accessed seconds i64, modified seconds i64, accessed nanoseconds u32, modified nanoseconds u32, link
// target's length u32, link target; then each xattr: name's length u16, value's length u32, name, value.
constexpr uint8_t kNodeVersion = 1;
constexpr size_t kNodeBytes = kHeadBytes + 52;
constexpr uint8_t kNodePinned = 1;  // of the flags

// contents: id u64 big-endian  ->  head (0, 0), version u32, extents u32, size u64, checksum low u64, high
// u64; then each extent: start u64, count u64.
constexpr uint8_t kContentVersion = 1;
constexpr size_t kContentBytes = kHeadBytes + 32;
constexpr size_t kExtentBytes = 16;

using IdKey = std::array<char, 8>;
IdKey id_key(uint64_t id);
std::optional<uint64_t> id_of(std::string_view key);
inline std::string_view view(const IdKey& key) {
  return {key.data(), key.size()};
}

// A name's key, built in place: names are looked up too often for an allocation each.
struct NameKey {
  NameKey(uint64_t parent, std::string_view name);  // of at most kNameMaxBytes
  operator std::string_view() const { return {bytes.data(), size}; }
  std::array<char, 8 + kNameMaxBytes> bytes;
  size_t size;
};
std::optional<CatalogName> name_of(std::string_view key);
std::string encode_name(std::string_view key, uint64_t id);
std::optional<uint64_t> decode_name(std::string_view key, std::string_view record);

struct NodeFacts {
  uint32_t names = 0;
  uint32_t mode = 0;
};
std::string encode_node(const CatalogNode& node, uint32_t names);  // at most 65535 xattrs
std::optional<NodeFacts> node_facts(uint64_t id, std::string_view record);
void set_names(uint64_t id, std::string& record, uint32_t names);
bool decode_node(uint64_t id, std::string_view record, CatalogNode& node);

std::string encode_content(uint64_t id, const CatalogContent& content);
bool decode_content(uint64_t id, std::string_view record, CatalogContent& content);

}  // namespace kvcachefs::records
