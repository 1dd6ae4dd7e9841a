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
  EXPECT_EQ(config.training.seq_length, 512);
  EXPECT_EQ(config.training.micro_batch_size, 8);
  EXPECT_EQ(config.training.train_iters, 77);
}

TEST(Examples, kjv_tiny_takes_every_kind_of_recompute) {
  const std::string path = std::string(DELTRON_SOURCE_DIR) + "/configs/kjv_tiny.yaml";
  const std::vector<std::vector<std::string>> legal = {
      {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn_norm_out, gdn_in_proj]"},
      {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn_in_proj, gdn_qkv, gdn_norm_out, gdn_core_attn, core_attn, mlp]"},
      {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn, core_attn, mlp]"},
      {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn_qkv_block, gdn_norm_out, gdn_core_attn, core_attn]"},
      {"recompute.recompute_granularity=full", "recompute.recompute_method=uniform", "recompute.recompute_num_layers=2"},
      {"recompute.recompute_granularity=full", "recompute.recompute_method=block", "recompute.recompute_num_layers=4"},
  };
  for (const std::vector<std::string>& overrides : legal) EXPECT_NO_THROW(load_run_config(path, overrides)) << overrides[1];
  EXPECT_THROW(load_run_config(path, {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn, gdn_qkv]"}), Error);
}

}  // namespace
}  // namespace deltron
