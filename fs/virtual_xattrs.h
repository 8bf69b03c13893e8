// The extended attributes of every entry that the daemon answers itself. They are read by name and not
// listed, because programs that copy a file with its attributes could not set them on the copy. Any thread.
#pragma once

#include <array>
#include <string_view>

namespace kvcachefs {

inline constexpr std::string_view kVirtualPrefix = "user.kvcachefs.";
// The last one exists only while the disk has a true copy.
inline constexpr std::array<std::string_view, 6> kVirtualXattrs = {"tier",    "node",   "hits",
                                                                   "version", "pinned", "checksum"};

}  // namespace kvcachefs
