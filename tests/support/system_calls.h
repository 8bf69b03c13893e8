// The order of system calls, for code that may be killed between any two of them. One thread; failures are
// recorded with GoogleTest.
#pragma once

#include <functional>
#include <initializer_list>
#include <vector>

namespace kvcachefs::test {

// What `look` says at each call of these kinds (SYS_…) that `body` makes, in order. The body runs in a child,
// in which these calls do nothing and succeed.
std::vector<int> at_calls(std::initializer_list<int> kinds, const std::function<void()>& body,
                          const std::function<int()>& look);
// The calls of these kinds themselves.
std::vector<int> calls_in(std::initializer_list<int> kinds, const std::function<void()>& body);

}  // namespace kvcachefs::test
