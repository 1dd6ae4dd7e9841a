// Pages below docs/ that the code writes: a test compares the page with what the code gives now, and writes it where the environment
// says DELTRON_UPDATE_DOCS=1.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "src/base/file.h"

namespace deltron::test {

inline void expect_page(const std::string& name, const std::string& expected) {
  const std::string path = std::string(DELTRON_SOURCE_DIR) + "/docs/" + name;
  const char* update = std::getenv("DELTRON_UPDATE_DOCS");
  if (update != nullptr && std::string(update) == "1") write_file_atomically(path, expected);
  EXPECT_TRUE(read_file(path) == expected) << path << " is not what the code gives; run this test with DELTRON_UPDATE_DOCS=1 to write it";
}

}  // namespace deltron::test
