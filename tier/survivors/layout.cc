#include "tier/survivors/layout.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr size_t kCopiedAtOnceBytes = 4096;  // a page: what was never used is to take no memory in the copy

constexpr uint32_t kNeeded = Section::kMustBeKnown;
constexpr uint64_t kBytesOfVersion3 = 92484232;
constexpr Section kVersion3[] = {
    {"con1", kNeeded, 16, 8208, 1},           {"chi1", kNeeded, 8224, 544, 1},
    {"req1", kNeeded, 8768, 16, 1},           {"han1", kNeeded, 8784, 24, 4096},
    {"ren1", kNeeded, 107088, 24, 4096},      {"sta1", kNeeded, 205392, 16, 256},
    {"poo1", kNeeded, 209488, 24, 1},         {"tex1", kNeeded | Section::kMustBeWhole, 209512, 16777216, 2},
    {"opu1", kNeeded, 33763944, 8, 1},        {"ope1", kNeeded, 33763952, 24, 1048576},
    {"bah1", kNeeded, 58929776, 8, 1},        {"bau1", kNeeded, 58929784, 8, 1},
    {"bac1", kNeeded, 58929792, 16, 1048576}, {"keu1", kNeeded, 75707008, 8, 1},
    {"kep1", kNeeded, 75707016, 16, 1048576},
};

std::unexpected<Error> of_another_format() {
  return fail(EPROTONOSUPPORT, "what the other program has left is of another format");
}

bool is_zero(std::span<const char> bytes) {
  return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
}

// `bytes` are those of `theirs` from `at` on, counted from the section's beginning.
Result<void> place(std::span<const char> bytes, uint64_t at, const Section& theirs, std::byte* to,
                   const Section& ours) {
  while (!bytes.empty()) {
    const uint64_t record = at / theirs.record_bytes;
    const uint64_t within = at % theirs.record_bytes;
    const auto its = bytes.first(std::min<uint64_t>(bytes.size(), theirs.record_bytes - within));
    if (record >= ours.count && !is_zero(its))
      return fail(EPROTONOSUPPORT,
                  fmt::format("the section {} has more records than this program can take", theirs.name()));
    if (record < ours.count && within < ours.record_bytes)
      std::memcpy(to + ours.offset + record * ours.record_bytes + within, its.data(),
                  std::min<uint64_t>(its.size(), ours.record_bytes - within));
    at += its.size();
    bytes = bytes.subspan(its.size());
  }
  return {};
}

Result<void> copy_section(int memory, const Section& theirs, std::byte* to, const Section& ours) {
  if (theirs.record_bytes > ours.record_bytes && (theirs.flags & Section::kMustBeWhole) != 0)
    return fail(
        EPROTONOSUPPORT,
        fmt::format("this program does not know all of the records of the section {}", theirs.name()));
  std::vector<char> piece(std::min<uint64_t>(kCopiedAtOnceBytes, theirs.bytes()));
  for (uint64_t at = 0; at < theirs.bytes(); at += piece.size()) {
    // Most places were never used.
    const auto data = sys::seek(memory, theirs.offset + at, SEEK_DATA);
    if (!data && data.error().code == ENXIO) break;
    if (data) at = std::max(at, *data - theirs.offset);
    if (at >= theirs.bytes()) break;
    const auto wanted = std::span(piece).first(std::min<uint64_t>(piece.size(), theirs.bytes() - at));
    const auto read = sys::read_at(memory, wanted, theirs.offset + at);
    if (!read || *read != wanted.size()) return of_another_format();
    if (is_zero(wanted)) continue;
    if (auto placed = place(wanted, at, theirs, to, ours); !placed) return placed;
  }
  return {};
}

}  // namespace

Result<LayoutHeader> read_layout(int memory) {
  LayoutHeader header{};
  const auto attributes = sys::stat_of(memory);
  const auto read = sys::read_at(memory, {reinterpret_cast<char*>(&header), sizeof header}, 0);
  if (!attributes || !read || *read != sizeof header || header.magic != LayoutHeader::kMagic)
    return of_another_format();
  const auto size = static_cast<uint64_t>(attributes->st_size);
  if (header.version == LayoutHeader::kVersionWithoutTable && size == kBytesOfVersion3) {
    header.count = std::size(kVersion3);
    std::ranges::copy(kVersion3, header.sections.begin());
  } else if (header.version != LayoutHeader::kVersion || header.count > LayoutHeader::kMostSections) {
    return of_another_format();
  }
  for (const Section& section : std::span(header.sections).first(header.count))
    if (section.record_bytes == 0 || section.offset > size || section.count > size / section.record_bytes ||
        section.bytes() > size - section.offset)
      return of_another_format();
  return header;
}

Result<void> copy_sections(int memory, std::span<const Section> theirs, std::byte* to,
                           std::span<const Section> ours) {
  for (const Section& section : theirs) {
    const auto its = std::ranges::find(ours, section.tag, &Section::tag);
    if (its == ours.end() && (section.flags & Section::kMustBeKnown) != 0)
      return fail(EPROTONOSUPPORT, fmt::format("this program does not know the section {}", section.name()));
    if (its == ours.end()) continue;
    if (auto copied = copy_section(memory, section, to, *its); !copied) return copied;
  }
  return {};
}

}  // namespace kvcachefs
