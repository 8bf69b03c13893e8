// An EntriesReader lists a pool's entries while the list is read, so that a list of millions of entries is
// never whole in memory. Reading backwards begins the list anew, so it is useful only for a return to the
// start.
// Thread safety: any thread; concurrent reads wait for one another.
// Failure: none; an entry that comes or goes during the read may or may not be listed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/sys.h"
#include "fs/control/control_file.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

// The list is a header and one line of tab-separated fields for each entry. Control characters of a name are
// escaped, so that any name is one field of one line, also for a reader that takes a carriage return for the
// end of a line.
std::string entries_header();
std::string render_entry(const EntryListing& entry);

class EntriesReader final : public ControlReader {
 public:
  using ListShard = std::function<std::vector<sys::Handle>(size_t shard)>;
  using Describe = std::function<std::optional<EntryListing>(sys::Handle entry)>;
  // A read describes the entries that its buffer takes, and at most this many more, because the other reads
  // of its user wait for it (fs/control_reads.h).
  static constexpr size_t kPieceEntries = 128;

  EntriesReader(size_t shards, ListShard list_shard, Describe describe);

  std::string read(uint64_t offset, size_t size) override EXCLUDES(mutex_);

 private:
  // The result is false at the end of the list.
  bool next_chunk() REQUIRES(mutex_);

  const size_t shards_;
  const ListShard list_shard_;
  const Describe describe_;

  Mutex mutex_;
  std::vector<sys::Handle> shard_ GUARDED_BY(mutex_);  // what is to come of the shard before next_shard_
  // The chunk is the only one that is kept: the header, or the lines of some entries.
  std::string chunk_ GUARDED_BY(mutex_);
  uint64_t chunk_offset_ GUARDED_BY(mutex_) = 0;
  size_t next_shard_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
