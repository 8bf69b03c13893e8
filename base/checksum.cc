#include "base/checksum.h"

// Debian builds the library as SSE2 code; through this header it uses the widest vectors that the processor
// has.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "base/check.h"

namespace kvcachefs {
namespace {

Checksum from_library(const XXH128_hash_t& hash) {
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace

void Hasher::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

Hasher::Hasher() : state_(XXH3_createState()) {
  KVCACHEFS_CHECK(state_ != nullptr);
  reset();
}

void Hasher::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  KVCACHEFS_CHECK(XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
}

Checksum Hasher::digest() const {
  return from_library(XXH3_128bits_digest(state_.get()));
}

void Hasher::reset() {
  KVCACHEFS_CHECK(XXH3_128bits_reset(state_.get()) == XXH_OK);
}

Checksum checksum_of(std::span<const std::byte> bytes) {
  return from_library(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace kvcachefs
