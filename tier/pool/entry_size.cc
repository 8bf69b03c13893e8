#include "tier/pool/entry_size.h"

namespace kvcachefs {

uint8_t SizesByName::class_of(std::string_view name) {
  const auto is_hexadecimal = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  };
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : name)
    if (!is_hexadecimal(c)) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return static_cast<uint8_t>(1 + (hash ^ hash >> 16) % (kClasses - 1));
}

}  // namespace kvcachefs
