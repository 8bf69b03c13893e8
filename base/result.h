// Errors as values. Any thread. An Error carries the errno that the caller of a file-system call would get
// and a sentence for the log. Only base/sys*.cc make an Error from errno; only fs/server.h (reply_error)
// turns it back into one.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace kvcachefs {

struct Error {
  int code = 0;         // an errno value, never 0 in an error that is returned
  std::string message;  // for the log; may be empty on hot paths, where the code says enough
};

template <class T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(int code, std::string message = {}) {
  return std::unexpected<Error>(Error{code, std::move(message)});
}

// Hands on the error of a failed result: `if (!r) return pass(r);`
template <class T>
std::unexpected<Error> pass(Result<T>& result) {
  return std::unexpected<Error>(std::move(result.error()));
}

}  // namespace kvcachefs
