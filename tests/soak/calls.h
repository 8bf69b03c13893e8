// What a client of the soak calls, and how each call may end: the errors that kvcachefsd(8), README.md or
// POSIX name for it, and how long it may take. Any thread; never fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcachefs::soak {

enum class Call : uint8_t {
  kOpenToRead,
  kOpenToWrite,
  kCreate,
  kOpenNameless,
  kOpenDirectory,
  kOpenAsPath,
  kRead,
  kWrite,
  kMap,
  kClose,
  kSync,
  kTruncate,
  kAllocate,
  kPunch,
  kStat,
  kStatFileSystem,
  kList,
  kRename,
  kExchange,
  kLink,
  kLinkNameless,
  kSymlink,
  kReadLink,
  kUnlink,
  kMakeDirectory,
  kRemoveDirectory,
  kChangeMode,
  kChangeOwner,
  kSetTimes,
  kSetXattr,
  kPin,
  kGetXattr,
  kListXattrs,
  kRemoveXattr,
  kWatch,
  kReadControl,
  kOrder,
};
inline constexpr int kCalls = static_cast<int>(Call::kOrder) + 1;

struct CallKind {
  std::string name;
  std::vector<int> documented;  // errors
  int most_seconds;             // at least what the manual says of its waits
};

const CallKind& kind_of(Call call);
bool is_documented(Call call, int error);

}  // namespace kvcachefs::soak
