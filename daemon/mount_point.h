#pragma once

#include "base/mountinfo.h"
