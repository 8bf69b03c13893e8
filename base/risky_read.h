// A RiskyRead marks the reading of a mapped file, as LMDB reads a catalog. A page that is damaged, or that
// its disk does not give, causes a signal that ends the process. A thread holds one for as long as it reads
// such a file. If such a signal comes, the name of the file is written down, so that the next process can do
// without that file. Thread safety: any thread; note_deaths_in() is called before there are other threads,
// forget() by one thread at a time. Failure: none; if the name cannot be written down, no later process
// learns of the death.
#pragma once

#include <string>
#include <string_view>

namespace kvcachefs {

class RiskyRead {
 public:
  explicit RiskyRead(const std::string& what);  // `what` must outlive the object
  ~RiskyRead();
  RiskyRead(const RiskyRead&) = delete;
  RiskyRead& operator=(const RiskyRead&) = delete;

  // note_deaths_in() has a line written for each later death to `file`, which `afresh` empties first. A
  // handler that was installed for these signals before runs afterwards.
  static void note_deaths_in(const std::string& file, bool afresh);
  static bool was_deadly(std::string_view what);
  static void forget(std::string_view what);
  // The caller is a library that finds that it cannot go on and is about to abort, or a handler that ends the
  // process.
  static void note_death();

 private:
  const std::string* const before_;
};

}  // namespace kvcachefs
