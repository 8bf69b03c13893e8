#include "daemon/succession.h"

#include <gtest/gtest.h>

namespace kvcachefs::succession_test {

TEST(Succession, WhatIsNewerIsRefused) {
  EXPECT_EQ(objection_to(own_formats()), "");
  EXPECT_EQ(objection_to("4.0.0"), "") << "an older disk";
  EXPECT_EQ(objection_to("3.1.2"), "") << "memory without a table of sections";
  for (const char* newer : {"5.1.2", "2.1.2", "4.2.2", "4.1.3"})
    EXPECT_NE(objection_to(newer).find(newer), std::string::npos) << newer;
  EXPECT_NE(objection_to("one"), "");
  EXPECT_NE(objection_to(""), "");
}

}  // namespace kvcachefs::succession_test
