// This header is the only includer of libfuse's header: it sets the version that the code is written against.
#pragma once

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 18)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#include <fuse_lowlevel.h>
#pragma GCC diagnostic pop
