// The log of a daemon that went to the background: the file that stderr leads to, which begins anew when it
// has grown, with one file of before beside it (NAME.1). Supervisor and child share their table of
// descriptors, so either does it for both. One thread at a time. Failure: the log goes on where it goes.
#pragma once

#include <cstdint>
#include <string>

namespace kvcachefs {

inline constexpr uint64_t kMostLogBytes = uint64_t{16} << 20;

std::string log_path(const std::string& runtime_dir);
// Makes stderr lead there.
void log_to(const std::string& path);
// Several times a second. Nothing if stderr leads elsewhere.
void keep_log_bounded(const std::string& path, uint64_t most_bytes = kMostLogBytes);

}  // namespace kvcachefs
