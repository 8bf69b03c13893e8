#include "tier/survivors/kept_inodes.h"

namespace kvcachefs {

Result<uint32_t> KeptInodes::keep(const KeptInode& kept) {
  if (!records_) return uint32_t{0};
  auto place = records_.take();
  if (!place) return place;
  Record& record = records_[*place];
  record.generation = kept.generation;
  record.fd = kept.fd;
  record.key = kept.inode.key();
  return place;
}

void KeptInodes::let_go(uint32_t place) {
  if (records_) records_.free(place);
}

std::vector<std::pair<uint32_t, KeptInode>> KeptInodes::list() const {
  std::vector<std::pair<uint32_t, KeptInode>> result;
  records_.for_each([&](uint32_t place, PoolInode inode, const Record& record) {
    result.emplace_back(place, KeptInode{inode, record.generation, record.fd});
  });
  return result;
}

}  // namespace kvcachefs
