// Every configuration that the repository ships loads, validates and survives being resolved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/file.h"
#include "src/config/loader.h"
#include "src/config/schema.h"

namespace deltron {
namespace {

TEST(Examples, every_shipped_configuration_is_legal) {
  const std::string folder = std::string(DELTRON_SOURCE_DIR) + "/configs";
  int count = 0;
  for (const std::string& name : list_directory(folder)) {
    if (name.size() < 5 || name.substr(name.size() - 5) != ".yaml") continue;
    SCOPED_TRACE(name);
    ++count;
    RunConfig config;
    ASSERT_NO_THROW(config = load_run_config(join_path(folder, name)));
    EXPECT_EQ(load_config_text(to_yaml(config), "resolved.yaml").config, config);
  }
  EXPECT_GE(count, 2);
}

TEST(Examples, kjv_tiny_is_a_hybrid_that_holds_the_byte_vocabulary) {
  const RunConfig config = load_run_config(std::string(DELTRON_SOURCE_DIR) + "/configs/kjv_tiny.yaml", {"training.train_iters=77"});
  EXPECT_EQ(config.model.vocab_size, 264);
  EXPECT_EQ(linear_layer_count(config.model), 3);
  EXPECT_EQ(softmax_layer_count(config.model), 1);
  EXPECT_EQ(config.training.train_iters, 77);
}

}  // namespace
}  // namespace deltron
