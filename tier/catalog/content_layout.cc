#include "tier/catalog/content_layout.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kHoleTag = "kv-hole\n";
constexpr Extent kNoPlace{1, 0};  // its start stands for data without a place yet

// DataRuns collects the data of a file as runs of units, in their order.
class DataRuns {
 public:
  // `is_whole`: no page of it is missing.
  void add(uint64_t first, uint64_t end, bool is_whole) {
    if (is_whole) whole_units_ += end - first;
    const uint64_t begin = runs_.empty() ? first : std::max(first, runs_.back().end());
    if (begin < end) found_units_ += end - begin;
    append({first, end - first});
    while (runs_.size() > kMostHoles) merge();
  }

  ContentLayout layout(uint64_t units) && {
    ContentLayout layout;
    uint64_t at = 0;
    const auto add_run = [&](uint64_t start, uint64_t count) {
      if (count > 0) layout.runs.push_back({start, count});
      at += count;
    };
    for (const Extent& run : runs_) {
      add_run(0, run.start - at);
      add_run(kNoPlace.start, run.count);
      layout.data_units += run.count;
    }
    add_run(0, units - at);
    layout.zero_units = layout.data_units - found_units_;
    layout.is_whole = whole_units_ == units;
    return layout;
  }

 private:
  void append(Extent run) {
    if (runs_.empty() || run.start >= runs_.back().end() + least_hole_units_) return runs_.push_back(run);
    Extent& last = runs_.back();
    last.count = std::max(last.end(), run.end()) - last.start;
  }

  void merge() {
    least_hole_units_ *= 2;
    std::vector<Extent> before = std::exchange(runs_, {});
    for (const Extent& run : before) append(run);
  }

  std::vector<Extent> runs_;
  uint64_t found_units_ = 0;
  uint64_t whole_units_ = 0;
  uint64_t least_hole_units_ = 1;
};

// Halves the units until each part is data or a hole. The last unit ends with the file.
Result<void> add_present(int fd, Extent units, uint64_t size_bytes, uint64_t unit_bytes, DataRuns& runs) {
  const uint64_t begin = units.start * unit_bytes;
  auto present = sys::present_pages(fd, begin, std::min(units.count * unit_bytes, size_bytes - begin));
  if (!present) return pass(present);
  if (*present == sys::Present::kNone) return {};
  if (*present == sys::Present::kAll || units.count == 1) {
    runs.add(units.start, units.end(), *present == sys::Present::kAll);
    return {};
  }
  const uint64_t half = units.count / 2;
  auto added = add_present(fd, {units.start, half}, size_bytes, unit_bytes, runs);
  return added ? add_present(fd, {units.start + half, units.count - half}, size_bytes, unit_bytes, runs)
               : std::move(added);
}

}  // namespace

bool has_holes(std::span<const Extent> extents) {
  return std::ranges::any_of(extents, is_hole);
}

Result<ContentLayout> layout_of_file(int fd, uint64_t size_bytes, uint64_t unit_bytes) {
  const auto units_to = [&](uint64_t bytes) { return bytes / unit_bytes + (bytes % unit_bytes != 0); };
  const uint64_t units = units_to(size_bytes);
  if (units == 0) return ContentLayout();
  DataRuns runs;
  auto added = add_present(fd, {0, units}, size_bytes, unit_bytes, runs);
  if (added) return std::move(runs).layout(units);
  if (added.error().code != ENOSYS && added.error().code != EPERM) return pass(added);
  // SEEK_DATA waits for a write that a client makes past the daemon, but passthrough needs Linux 6.9, which
  // can tell otherwise unless a container's filter refuses that.
  for (uint64_t unit = 0; unit < units;) {
    auto data = sys::seek(fd, unit * unit_bytes, SEEK_DATA);
    if (!data && data.error().code != ENXIO) return pass(data);
    if (!data || *data >= size_bytes) break;
    auto end = sys::seek(fd, *data, SEEK_HOLE);
    if (!end && end.error().code != ENXIO) return pass(end);
    if (!end) break;  // the file is cut short at this moment
    unit = units_to(std::min(*end, size_bytes));
    runs.add(*data / unit_bytes, unit, *data == 0 && *end >= size_bytes);
  }
  return std::move(runs).layout(units);
}

ContentLayout layout_without_holes(uint64_t units) {
  ContentLayout layout{.runs = {}, .data_units = units, .zero_units = 0};
  if (units > 0) layout.runs.push_back({kNoPlace.start, units});
  return layout;
}

bool has_layout(std::span<const Extent> extents, const ContentLayout& layout) {
  auto extent = extents.begin();
  for (const Extent& run : layout.runs) {
    uint64_t units = 0;
    while (extent != extents.end() && is_hole(*extent) == is_hole(run)) units += (extent++)->count;
    if (units != run.count) return false;
  }
  return extent == extents.end();
}

std::vector<Extent> lay_out(const ContentLayout& layout, std::span<const Extent> space) {
  std::vector<Extent> extents;
  uint64_t used = 0;  // units of space.front() that are used up
  for (Extent run : layout.runs) {
    if (is_hole(run)) {
      extents.push_back(run);
      continue;
    }
    while (run.count > 0) {
      KVCACHEFS_CHECK(!space.empty());
      const uint64_t count = std::min(run.count, space.front().count - used);
      extents.push_back({space.front().start + used, count});
      run.count -= count;
      used += count;
      if (used < space.front().count) continue;
      space = space.subspan(1);
      used = 0;
    }
  }
  KVCACHEFS_CHECK(space.empty());
  return extents;
}

void hash_hole(Hasher& hasher, uint64_t units) {
  std::array<std::byte, kHoleTag.size() + sizeof units> bytes;
  std::memcpy(bytes.data(), kHoleTag.data(), kHoleTag.size());
  std::memcpy(&bytes[kHoleTag.size()], &units, sizeof units);
  hasher.update(bytes);
}

uint64_t data_bytes_of(std::span<const Extent> extents, uint64_t size_bytes, uint64_t unit_bytes) {
  uint64_t hole_bytes = 0;
  uint64_t at = 0;
  for (const Extent& extent : extents) {
    const uint64_t left = size_bytes - std::min(at, size_bytes);
    const uint64_t bytes = extent.count > left / unit_bytes ? left : extent.count * unit_bytes;
    if (is_hole(extent)) hole_bytes += bytes;
    at += bytes;
  }
  return size_bytes - hole_bytes;
}

uint64_t first_place_of(std::span<const Extent> extents, uint64_t unit_bytes) {
  const auto data = std::ranges::find_if_not(extents, is_hole);
  return data == extents.end() ? 0 : data->start * unit_bytes;
}

std::optional<uint64_t> seek_in_content(const CatalogContent& content, uint64_t unit_bytes, uint64_t offset,
                                        bool to_data) {
  if (offset >= content.size_bytes) return std::nullopt;
  uint64_t begin = 0;
  for (const Extent& extent : content.extents) {
    const uint64_t end = begin + extent.count * unit_bytes;
    if (offset < end && is_hole(extent) != to_data) return std::max(offset, begin);
    begin = end;
  }
  // A file ends as with a hole.
  return to_data ? std::nullopt : std::optional(content.size_bytes);
}

}  // namespace kvcachefs
