// How the memory that outlives a serving process is laid out: a table at its beginning has a line for each
// section. A program that finds another table than its own copies section by section: what it does not know
// is left out, what it does not find is empty, and of records of another length the bytes that both know are
// taken, the rest is zero. So a record may get further fields at its end, for which zero has to stand for
// "not known". A section whose fields mean something else than before gets another tag. Any thread, on memory
// that no process writes to. Failure: EPROTONOSUPPORT with the section's tag.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace kvcachefs {

struct Section {
  // A program that does not know the tag cannot go on with the memory.
  static constexpr uint32_t kMustBeKnown = 1;
  // Nor can a program whose records are shorter.
  static constexpr uint32_t kMustBeWhole = 2;

  struct Tag {
    constexpr Tag(const char (&text)[5]) : letters{text[0], text[1], text[2], text[3]} {}
    constexpr Tag() = default;
    bool operator==(const Tag&) const = default;
    std::array<char, 4> letters{};
  };

  Tag tag;
  uint32_t flags;
  uint64_t offset;
  uint64_t record_bytes;
  uint64_t count;

  bool operator==(const Section&) const = default;
  uint64_t bytes() const { return record_bytes * count; }
  std::string name() const { return {tag.letters.data(), tag.letters.size()}; }
};

struct LayoutHeader {
  static constexpr uint64_t kMagic = 0x7376697672757376;
  static constexpr uint32_t kVersion = 4;  // 4: the table
  static constexpr uint32_t kVersionWithoutTable = 3;
  static constexpr size_t kMostSections = 64;

  uint64_t magic;
  uint32_t version;
  uint32_t count;  // of sections
  std::array<Section, kMostSections> sections;
};

// The sections of this memory, by its table, or as all programs of the version without one have them.
Result<LayoutHeader> read_layout(int memory);

// `to` is zero but for its header.
Result<void> copy_sections(int memory, std::span<const Section> theirs, std::byte* to,
                           std::span<const Section> ours);

}  // namespace kvcachefs
