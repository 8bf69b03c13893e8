// The records of a directory as getdents64(2) gives them (linux_dirent64). Any thread; never fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace kvcachefs {

struct DirectoryRecord {
  uint64_t ino = 0;
  int64_t next_offset = 0;
  uint8_t type = 0;  // DT_REG and so on
  const char* name = nullptr;
};

// The bytes of one sys::read_directory(), which must outlive the records.
class DirectoryRecords {
 public:
  explicit DirectoryRecords(std::span<const char> bytes) : bytes_(bytes) {}

  std::optional<DirectoryRecord> next() {
    if (bytes_.empty()) return std::nullopt;
    Raw raw;
    std::memcpy(&raw, bytes_.data(), kNameAt);
    const char* const name = bytes_.data() + kNameAt;
    bytes_ = bytes_.subspan(raw.record_bytes);
    return DirectoryRecord{raw.ino, raw.next_offset, raw.type, name};
  }

 private:
  struct Raw {
    uint64_t ino;
    int64_t next_offset;
    uint16_t record_bytes;
    uint8_t type;
    char name[1];
  };
  static constexpr size_t kNameAt = offsetof(Raw, name);

  std::span<const char> bytes_;
};

}  // namespace kvcachefs
