// A ControlFile is a virtual file: it says what a read shows and what a write does. Tables of them are in
// fs/control/pool_files.h and fs/control/server_files.h.
// Thread safety: a ControlFile is constant; any thread may call a ControlReader. The target must outlive the
// reader that was opened on it.
// Failure: as the functions say; the message is a sentence for the log.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "tier/pool_options.h"

namespace kvcachefs {

// A ControlReader is one open of a control file. Reading never fails.
class ControlReader {
 public:
  virtual ~ControlReader() = default;
  // The result is shorter than `size` only at the end, unless there is none.
  virtual std::string read(uint64_t offset, size_t size) = 0;
  virtual bool is_gathered() const { return false; }  // the text is complete, so a read costs nothing
  // More may come after an empty result, which is not the end; offsets do not matter.
  virtual bool is_endless() const { return false; }
  virtual void follows_another() {}  // a process that died had the file open
};

class TextReader final : public ControlReader {
 public:
  explicit TextReader(std::string text) : text_(std::move(text)) {}

  std::string read(uint64_t offset, size_t size) override {
    return offset < text_.size() ? text_.substr(offset, size) : std::string();
  }
  bool is_gathered() const override { return true; }

 private:
  const std::string text_;
};

class AnswerText;
class Rights;
struct IndexRecord;

template <class Target>
struct ControlFile {
  std::string_view name;
  // The file's part of its nodeid, which the kernel keeps across an upgrade: it stays the file's for ever,
  // and is never given to another, also when the file goes. From 1; less than 4096.
  uint16_t number = 0;
  // One of these two shows the content, unless the file answers queries.
  Result<std::string> (*text)(Target&) = nullptr;
  Result<std::unique_ptr<ControlReader>> (*stream)(Target&) = nullptr;
  // A read-only file has nullptr here.
  Result<void> (*write)(Target&, std::string_view) = nullptr;
  // Without this flag each write is one order. With it each line is one order; a line that a write leaves
  // unfinished goes on with the next write or ends with the close.
  bool takes_lines = false;
  // The text that is written to an open is a query, which a read of the same open answers. Any user may ask.
  // The other members that show or write are null.
  Result<void> (*answer)(Target&, const Rights&, std::string_view query, AnswerText& text) = nullptr;
  // Writes carry records, which may be cut anywhere. Any user may write, with the user's own rights.
  Result<void> (*records)(Target&, const Rights&, std::span<const IndexRecord>) = nullptr;
  // The file of a pool is also in .kvcachefs/pools/NAME; a write there acts for the administrator.
  bool of_administrator = false;
  bool owner_only_reads = false;  // only the administrator writes it, in .kvcachefs
  bool only_owner_reads = false;  // only the owner may read it
  bool gathers = false;           // showing the file takes a look at every entry

  mode_t mode(Authority authority = Authority::kOwner) const {
    if (answer != nullptr || records != nullptr) return 0666;
    if (authority == Authority::kAdministrator) return write != nullptr ? 0600 : 0400;
    if (only_owner_reads) return 0400;
    return write != nullptr && !owner_only_reads ? 0644 : 0444;
  }

  Result<std::unique_ptr<ControlReader>> open(Target& target) const {
    if (answer != nullptr) return std::make_unique<TextReader>(std::string());
    if (stream != nullptr) return stream(target);
    Result<std::string> shown = text(target);
    if (!shown) return pass(shown);
    return std::make_unique<TextReader>(std::move(*shown));
  }
};

template <class Files>
constexpr bool has_own_numbers(const Files& files) {
  for (auto file = files.begin(); file != files.end(); ++file) {
    if (file->number == 0 || file->number >= 4096) return false;
    for (auto other = files.begin(); other != file; ++other)
      if (other->number == file->number || other->name == file->name) return false;
  }
  return true;
}

template <class File>
const File* file_of_number(std::span<const File> files, uint64_t number) {
  for (const File& file : files)
    if (file.number == number) return &file;
  return nullptr;
}

}  // namespace kvcachefs
