#include "tier/survivors/kept_inodes.h"

namespace kvcachefs {

KeptInodes::KeptInodes(Shared* shared) {
  if (shared != nullptr) records_.emplace(*shared);
}

void KeptInodes::begin_generation() {
  if (records_) records_->find_free();
}

Result<uint32_t> KeptInodes::keep(const KeptInode& kept) {
  if (!records_) return uint32_t{0};
  auto place = records_->take();
  if (!place) return place;
  Record& record = (*records_)[*place];
  record.generation = kept.generation;
  record.fd = kept.fd;
  record.key = kept.inode.key();
  return place;
}

void KeptInodes::let_go(uint32_t place) {
  if (records_) records_->free(place);
}

std::vector<std::pair<uint32_t, KeptInode>> KeptInodes::list() {
  std::vector<std::pair<uint32_t, KeptInode>> result;
  for (uint32_t place = 0; records_ && place < records_->used(); ++place) {
    const Record& record = (*records_)[place];
    if (const uint64_t key = record.key; key != 0)
      result.emplace_back(
          place,
          KeptInode{.inode = PoolInode::from_key(key), .generation = record.generation, .fd = record.fd});
  }
  return result;
}

}  // namespace kvcachefs
