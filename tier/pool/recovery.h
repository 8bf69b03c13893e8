// Recovery gives a pool back what outlived a process: its memory after that process died (adopt), and what
// its disk has, after that or after a reboot. It uses the pool's other parts, none of which calls it, and is
// carried out in tier/recovery. adopt() and the attach functions are each called once, by one thread.
// Failure: a sentence for the log; the pool is as it was.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
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
  bool has_found_to_read(uint64_t ino);  // a file that no process writes, in memory or on a readable disk
  bool is_read_from_disk(uint64_t ino);  // what is open of it
  // What the catalog has comes back, cold. The pool may be served already: its entries then get the disk too,
  // and until all is back directories and what has come back cannot be renamed or removed (EBUSY).
  Result<void> attach_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                           uint64_t unit_bytes, const PoolOptions& spill);
  // An adopted pool's disk, from which clients are served until it is attached (DiskBeforeUse).
  Result<void> take_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                         uint64_t unit_bytes, const PoolOptions& spill);
  PoolDisk& disk() { return disk_; }
  // Attaches an adopted pool's disk: the marks on its files say what the disk has of them, and the catalog is
  // made to agree with them.
  Result<void> attach_adopted_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                   uint64_t unit_bytes, const PoolOptions& spill);
  // The same, but what comes back is left to bring_back(), which another thread calls while the pool is
  // served; of an adopted pool after take_disk(). ENOSPC: the pool's size is not enough for the names that
  // the catalog has.
  Result<void> begin_attaching(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                               uint64_t unit_bytes, const PoolOptions& spill);
  Result<void> begin_attaching_adopted(const PoolOptions& spill);
  bool brings_back() const { return pending_.has_value(); }  // bring_back() is to be called
  // `in_use` is called when all directories are back and the disk tier is in use; before it, the pool is not
  // served. After a failure before it the pool has no disk tier, and an adopted pool goes on without its
  // disk. After a later one, what is back by then is served, and the catalog is not written any more.
  // ECANCELED after give_up(): the pool is of no further use.
  Result<void> bring_back(const std::function<void()>& in_use);
  void give_up() { given_up_ = true; }
  // Any thread. True while a pool that was taken over in the midst of a restore is without its disk, which
  // alone can tell what the name is: there is nothing by it, but its directory is one that the catalog has.
  bool may_be_to_come(uint64_t directory_ino, const std::string& name) const;
  // An adopted pool without its disk goes on with what is in memory (tier/disk/away_disk.h). EIO as adopt().
  Result<void> go_on_without_disk(const PoolOptions& spill, const Error& why);

 private:
  class Adopter;
  class Restorer;
  class Reconciler;
  using KnownNodes = std::unordered_map<uint64_t, sys::Handle>;  // by the catalog's number
  Result<void> make_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                         uint64_t unit_bytes, const PoolOptions& spill);
  struct Pending {
    PoolOptions spill;
    KnownNodes there;
    RestoringMark mark;
    bool is_adopted = false;
  };
  Result<void> begin_restoring(const PoolOptions& spill);
  Result<void> has_room_for_names();
  static std::string too_small(uint64_t inodes);  // a pool that needs as many
  // With `use` the pool is served from when it is called, after the directories.
  Result<void> restore(DiskTier& tier, const KnownNodes& there, const RestoringMark& mark = {},
                       const std::function<void()>& use = {});
  // What the catalog has beyond the mark and the tree lacks is still to be restored. Answers the tree's
  // nodes.
  Result<KnownNodes> reconcile(DiskTier& tier, const std::optional<RestoringMark>& mark);
  void use_disk(const PoolOptions& spill);
  void undo_attaching();
  void all_are_back();
  void tell_names();
  void promote_pinned();
  void adopt_mark(uint64_t ino, const std::string& name, CopyMark mark);

  const Parts parts_;
  std::atomic<bool> adopting_{false};
  std::optional<Pending> pending_;
  std::vector<uint64_t> cold_pinned_;  // that the reconciler has found
  std::atomic<bool> given_up_{false};
  std::unique_ptr<Adopter> adopter_;  // stays, because a late find() may use it
};

}  // namespace kvcachefs
