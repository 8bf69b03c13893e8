// Programmer errors stop the process, in release builds too. Any thread; does not return on failure.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KVCACHEFS_CHECK(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "<2>check failed: %s (%s:%d)\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
