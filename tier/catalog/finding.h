// What reading a content's copy on the disk has shown. A plain value; any thread.
#pragma once

namespace kvcachefs {

struct Finding {
  enum class Kind {
    kWhole,
    kWrongBytes,     // they do not have the content's checksum
    kTooFewExtents,  // for the content's size
    kUnreadable,  // nothing is known of the bytes, and they may be read later, as after a controller's reset
  };
  Kind kind = Kind::kWhole;
  int error = 0;  // of kUnreadable: an errno

  bool is_whole() const { return kind == Kind::kWhole; }
  bool is_damage() const { return kind == Kind::kWrongBytes || kind == Kind::kTooFewExtents; }
  bool operator==(const Finding&) const = default;
};

}  // namespace kvcachefs
