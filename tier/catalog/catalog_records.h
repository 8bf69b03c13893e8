// The bytes of the catalog's records; tier/FORMAT.md describes them for readers. Any thread; no state. All
// numbers are little-endian except those in keys, which are big-endian so that they sort as numbers. Every
// record has a version and a check of its key and bytes. Decoding reads no byte outside its argument and
// answers false for anything that encoding does not make.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tier/catalog/catalog.h"

namespace kvcachefs::records {

// The format of the catalog as a whole, kept in the setting kFormatSetting. A reader refuses a greater one. A
// catalog is made with kFirstFormat, which all programs know; its first content with holes raises it to
// kFormat.
constexpr uint32_t kFirstFormat = 1;
constexpr uint32_t kFormat = 2;
constexpr std::string_view kFormatSetting = "catalog.format";
constexpr std::string_view kOwnSettings = "catalog.";

// Every record begins with this head: version u8, a u8 and a u16 of the record's own, then the check u32: the
// low half of the XXH3-128 of the key followed by the record with 0 for the check, folded to 32 bits.
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
constexpr uint8_t kNodePinned = 1;  // in flags
// The ctime is the last of the xattrs, under a name that no user can give: seconds i64, nanoseconds u32. A
// program that does not know it restores it to the file as an xattr, which no user sees.
constexpr std::string_view kChangedXattr = "trusted.kvcachefs.ctime";
constexpr size_t kChangedBytes = 12;

// contents: id u64 big-endian  ->  head (0, 0), version u32, extents u32, size u64, checksum low u64, high
// u64; then each extent: start u64, count u64.
constexpr uint8_t kContentVersion = 1;
constexpr uint8_t kHoleContentVersion = 2;  // contents with holes (tier/catalog/content_layout.h)
constexpr size_t kContentBytes = kHeadBytes + 32;
constexpr size_t kExtentBytes = 16;

struct IdKey {
  operator std::string_view() const { return {bytes.data(), bytes.size()}; }
  std::array<char, 8> bytes;
};
IdKey id_key(uint64_t id);
std::optional<uint64_t> id_of(std::string_view key);

// The key of a name, built in place, because names are looked up too often for an allocation each.
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
std::string encode_node(const CatalogNode& node, uint32_t names);  // at most 65534 xattrs
std::optional<NodeFacts> node_facts(uint64_t id, std::string_view record);
void set_names(uint64_t id, std::string& record, uint32_t names);
bool decode_node(uint64_t id, std::string_view record, CatalogNode& node);

std::string encode_content(uint64_t id, const CatalogContent& content);
bool decode_content(uint64_t id, std::string_view record, CatalogContent& content);

}  // namespace kvcachefs::records
