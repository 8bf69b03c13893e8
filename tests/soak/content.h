// The contents of the soak's files. Each aligned word of a file says whose it is, where it lies and which
// version of the content it belongs to, so that a reader who knows the file's name alone can tell a wrong
// byte whatever writers do meanwhile. Any thread; never fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvcachefs::soak {

inline constexpr size_t kBlock = 4096;

// What a name says of its content.
struct Identity {
  uint64_t id = 0;
  bool is_whole = false;  // it is stored at once: it has one version, and the size of that
};

// The names are e-N, l-N (a link to e-N), x-N (exchanged with its neighbour), s-CLIENT-N, deep-N, all whole,
// and f-CLIENT-N, which its client changes as it lies. Others have no identity.
std::optional<Identity> identity_of(std::string_view name);

// From 1 byte to `most`; small ones are more frequent. Versions are from 1 to 65535.
size_t whole_size(uint64_t id, uint16_t version, size_t most);
inline constexpr size_t kMostEntryBytes = 8 << 20;
inline constexpr size_t kMostSmallBytes = 4096;
size_t whole_size(std::string_view name, uint16_t version);

// `bytes` bytes of a content from `offset`, a multiple of 8.
std::string content_of(uint64_t id, uint16_t version, size_t offset, size_t bytes);

// What bytes that were read at `offset`, a multiple of 8, hold.
struct Verdict {
  bool is_wrong = false;
  size_t wrong_at = 0;  // the offset in the file
  uint64_t word = 0;    // what is there
  bool has_hole = false;
  uint16_t first = 0, last = 0;  // the least and the highest version; 0: none
};
Verdict judge(uint64_t id, size_t offset, std::string_view bytes);

// Empty if `bytes` is all of a file of that name; else what is wrong.
std::string wrong_whole(std::string_view name, std::string_view bytes);
// The same of a file that may have holes and blocks of several versions.
std::string wrong_words(std::string_view name, size_t offset, std::string_view bytes);

}  // namespace kvcachefs::soak
