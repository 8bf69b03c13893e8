#include "tests/soak/content.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace kvcachefs::soak {
namespace {

constexpr uint64_t kHashMask = (uint64_t{1} << 48) - 1;

uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

uint64_t word_of(uint64_t id, uint64_t index, uint16_t version) {
  return uint64_t{version} << 48 |
         (mixed(id * 0x9e3779b97f4a7c15 + index * 0xd1b54a32d192ed03 + version) & kHashMask);
}

bool number_from(std::string_view& text, uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

std::string hex(uint64_t word) {
  std::string text(16, '0');
  for (size_t i = 0; i < 16; ++i) text[i] = "0123456789abcdef"[word >> (60 - 4 * i) & 15];
  return text;
}

std::string text_of(const Verdict& verdict) {
  return "wrong bytes at " + std::to_string(verdict.wrong_at) + ": word " + hex(verdict.word);
}

}  // namespace

std::optional<Identity> identity_of(std::string_view name) {
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos) return {};
  const std::string_view family = name.substr(0, dash);
  name.remove_prefix(dash + 1);
  uint64_t first = 0, second = 0;
  if (!number_from(name, &first)) return {};
  if (name.starts_with("-")) {
    name.remove_prefix(1);
    if (!number_from(name, &second)) return {};
  }
  if (!name.empty()) return {};
  if (family == "e" || family == "l") return Identity{first, true};
  if (family == "x") return Identity{(uint64_t{1} << 32) + first / 2, true};
  if (family == "deep") return Identity{(uint64_t{2} << 32) + first, true};
  if (family == "s") return Identity{(3 + first) << 32 | second, true};
  if (family == "f") return Identity{(64 + first) << 32 | second, false};
  return {};
}

size_t whole_size(uint64_t id, uint16_t version, size_t most) {
  const uint64_t draw = mixed(id * 31 + version);
  const size_t within = version % 16 == 0 ? most : version % 16 < 4 ? most / 16 : most / 128;
  return 1 + draw % std::max<size_t>(within, 1);
}

size_t whole_size(std::string_view name, uint16_t version) {
  const bool small = name.starts_with("s-") || name.starts_with("deep-");
  return whole_size(identity_of(name)->id, version, small ? kMostSmallBytes : kMostEntryBytes);
}

std::string content_of(uint64_t id, uint16_t version, size_t offset, size_t bytes) {
  std::string content(bytes, '\0');
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = word_of(id, (offset + at) / 8, version);
    std::memcpy(content.data() + at, &word, std::min<size_t>(8, bytes - at));
  }
  return content;
}

Verdict judge(uint64_t id, size_t offset, std::string_view bytes) {
  Verdict verdict{.first = UINT16_MAX};
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    if (word == 0) {
      verdict.has_hole = true;
      continue;
    }
    const auto version = static_cast<uint16_t>(word >> 48);
    verdict.first = std::min(verdict.first, version);
    verdict.last = std::max(verdict.last, version);
    if (word == word_of(id, (offset + at) / 8, version)) continue;
    verdict.is_wrong = true;
    verdict.wrong_at = offset + at;
    verdict.word = word;
    break;
  }
  if (verdict.last == 0) verdict.first = 0;
  return verdict;
}

std::string wrong_whole(std::string_view name, std::string_view bytes) {
  const uint64_t id = identity_of(name)->id;
  const Verdict verdict = judge(id, 0, bytes);
  if (verdict.is_wrong) return text_of(verdict);
  if (bytes.empty()) return "no bytes";
  if (bytes.size() < 8) return "";  // too short to say which version it is
  if (verdict.has_hole) return "a hole in " + std::to_string(bytes.size()) + " bytes";
  if (verdict.first != verdict.last)
    return "versions " + std::to_string(verdict.first) + " and " + std::to_string(verdict.last);
  const size_t size = whole_size(name, verdict.first);
  if (size != bytes.size()) return std::to_string(bytes.size()) + " bytes, not " + std::to_string(size);
  const size_t words = size / 8 * 8;
  if (content_of(id, verdict.first, words, size - words) != bytes.substr(words)) return "a wrong last byte";
  return "";
}

std::string wrong_words(std::string_view name, size_t offset, std::string_view bytes) {
  const Verdict verdict = judge(identity_of(name)->id, offset, bytes);
  return verdict.is_wrong ? text_of(verdict) : "";
}

}  // namespace kvcachefs::soak
