// Client processes of a test: forked children that answer to their parent over pipes. Only for a process
// without other threads, because threads do not survive a fork. A child that dies or is late is reported; no
// call waits for it without end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace kvcachefs::clients {

// One message each way at a time: a length, then that many bytes. Returns false or nullopt once the other
// side is gone or late.
bool send_message(int fd, const std::string& message);
std::optional<std::string> receive_message(int fd, std::chrono::milliseconds deadline);

class ChildProcess {
 public:
  // `body` reads requests from its first and writes answers to its second descriptor; the child ends when
  // `body` returns.
  explicit ChildProcess(const std::function<void(int, int)>& body);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  bool ask(const std::string& request) { return send_message(requests_.get(), request); }
  std::optional<std::string> answer(std::chrono::milliseconds deadline) {
    return receive_message(answers_.get(), deadline);
  }
  // finish() closes the requests and waits for the child. Empty if the child ended with 0, else how it ended.
  std::string finish(std::chrono::milliseconds deadline);

 private:
  pid_t pid_ = -1;
  UniqueFd requests_;
  UniqueFd answers_;
};

}  // namespace kvcachefs::clients
