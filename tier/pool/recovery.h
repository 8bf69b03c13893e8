// Recovery gives a pool back what outlived a process: its memory after that process died (adopt), and what
// its disk has, after that or after a reboot. It uses the pool's other parts, none of which calls it, and is
// carried out in tier/recovery. adopt() and the attach functions are each called once, by one thread.
// Failure: a sentence for the log; the pool is as it was.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tier/pool/open_files.h"
#include "tier/pool/pool_residency.h"
#include "tier/pool/settings.h"

namespace kvcachefs {

class Recovery : DiskPart {
 public:
  struct Parts {
    Reservations& reservations;
    CopyMarks& marks;
    const Insight& insight;
    Inodes& inodes;
    Tree& tree;
    PoolResidency& residency;
    DiskRequests& disk_requests;
    OpenFiles& open_files;
    Settings& settings;
  };
  Recovery(const DiskPart& part, const Parts& parts);
  ~Recovery();

  // Finds out again what the process that died knew of the files (tier/survivors/survivors.h):
  // begin_adopting() what only it can tell of, which takes no time, and then adopt() all of the rest. Answers
  // the inodes that have no name and no content. EIO if not all of the files could be looked at.
  Result<void> begin_adopting();
  Result<std::vector<uint64_t>> adopt();
  // In between, while nothing is evicted or changed, any thread may ask (fs/served_in_part.h). find() finds
  // what has the name in a directory that was found, at once; false: it cannot.
  bool is_adopting() const {
    return adopting_;
  }  // up to all_found(): attributes may not be what they will be
  void all_found() { adopting_ = false; }
  bool find(uint64_t directory_ino, const char* name);
  bool has_found(uint64_t ino);
  bool is_open(uint64_t ino);            // what has not been found yet
  bool has_found_to_read(uint64_t ino);  // a file in memory that nobody writes
  // What the catalog has comes back, cold. The pool may be served already: its entries then get the disk too,
  // and until all is back directories and what has come back cannot be renamed or removed (EBUSY).
  Result<void> attach_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                           uint64_t unit_bytes, const PoolOptions& spill);
  // Attaches an adopted pool's disk: the marks on its files say what the disk has of them, and the catalog is
  // made to agree with them.
  Result<void> attach_adopted_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                   uint64_t unit_bytes, const PoolOptions& spill);
  // An adopted pool without its disk goes on with what is in memory (tier/disk/away_disk.h). EIO as adopt().
  Result<void> go_on_without_disk(const PoolOptions& spill, const Error& why);

 private:
  class Adopter;
  class Restorer;
  class Reconciler;
  using KnownNodes = std::unordered_map<uint64_t, sys::Handle>;  // by the catalog's number
  Result<void> make_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                         uint64_t unit_bytes, const PoolOptions& spill);
  Result<void> begin_restoring(const PoolOptions& spill);
  Result<void> restore(DiskTier& tier, const KnownNodes& there);
  // `unfinished`: what the catalog has and the tree lacks is still to be restored. Answers the tree's nodes.
  Result<KnownNodes> reconcile(DiskTier& tier, bool unfinished);
  void use_disk(const PoolOptions& spill);
  void tell_names();
  void adopt_mark(uint64_t ino, const std::string& name, CopyMark mark);

  const Parts parts_;
  std::atomic<bool> adopting_{false};
  std::unique_ptr<Adopter> adopter_;  // stays, because a late find() may use it
};

}  // namespace kvcachefs
