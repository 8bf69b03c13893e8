// What Debian 12's linux/fuse.h lacks of the protocol, from include/uapi/linux/fuse.h of Linux 6.9 and newer.
// Any thread; constants alone, so that nothing fails.
#pragma once

#include <sys/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace kvcachefs {

// Flags of an INIT request. All but the first are in flags2.
inline constexpr uint32_t kInitExtended = 1u << 30;
inline constexpr uint32_t kInitMapsDirect = 1u << (36 - 32);   // Linux 6.6
inline constexpr uint32_t kInitPassthrough = 1u << (37 - 32);  // Linux 6.9
inline constexpr uint32_t kInitResend = 1u << (39 - 32);       // Linux 6.9
inline constexpr uint32_t kInitMappedIds = 1u << (40 - 32);    // Linux 6.12
inline constexpr uint32_t kInitOverUring = 1u << (41 - 32);    // Linux 6.14

// The answer to INIT, of which a libfuse may send less.
struct InitAnswer {
  uint32_t major, minor, max_readahead, flags;
  uint16_t max_background, congestion_threshold;
  uint32_t max_write, time_gran;
  uint16_t max_pages, map_alignment;
  uint32_t flags2;
  uint32_t max_stack_depth;  // Linux 6.9
  uint32_t unused[6];
};
static_assert(offsetof(InitAnswer, flags2) == 32);
static_assert(sizeof(InitAnswer) == 64);
inline constexpr size_t kInitFlagsEnd = 36;

// Notifications, from Linux 6.9 and 6.16. After the second one the kernel looks up again the names that the
// earlier process removed or restored without having told it. A kernel without it does so only when a use of
// such a name fails.
inline constexpr int32_t kNotifyResend = 7;
inline constexpr int32_t kNotifyIncreaseEpoch = 8;

struct FuseBackingMap {
  int32_t fd;
  uint32_t flags;
  uint64_t padding;
};
inline constexpr unsigned long kBackingOpen = _IOW(229, 1, FuseBackingMap);
inline constexpr unsigned long kBackingClose = _IOW(229, 2, uint32_t);

}  // namespace kvcachefs
