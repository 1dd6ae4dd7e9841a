// FLOPs per token against counts done by hand.
#include "src/model/flops.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"

namespace deltron {
namespace {

TEST(Flops, of_each_part_are_six_times_its_multiplications) {
  const TransformerConfig config = test::tiny_config();
  const FlopsPerToken flops = training_flops_per_token(config);
  EXPECT_EQ(flops.logits, 6.0 * 10 * 13);
  EXPECT_EQ(flops.mlp, 6.0 * 3 * (3 * 10 * 7));
  // q and gate 16 each, k and v 8 each, projection 16.
  EXPECT_EQ(flops.softmax_projections, 6.0 * (10 * (16 + 16 + 8 + 8) + 16 * 10));
  // in_proj 2 Dq + 2 Dv + 2 Hv, convolution, rule, out_proj; two layers.
  EXPECT_EQ(flops.linear_mixers, 6.0 * 2 * (10 * (10 + 12 + 4) + 3 * 16 + 4 * 2 * 15 + 10 * 6));
  EXPECT_EQ(flops.total(), flops.logits + flops.mlp + flops.softmax_projections + flops.linear_mixers);
}

TEST(Flops, of_gdn2_count_its_wider_projection) {
  TransformerConfig config = test::tiny_config();
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
  // in_proj 4 Dq + 3 Dv; the rest as above.
  EXPECT_EQ(training_flops_per_token(config).linear_mixers, 6.0 * 2 * (10 * (20 + 18) + 3 * 16 + 4 * 2 * 15 + 10 * 6));
}

TEST(Flops, of_attention_cores_grow_with_the_squares_of_document_lengths) {
  const TransformerConfig config = test::tiny_config();
  EXPECT_EQ(attention_core_flops(config, {8}), 6.0 * 16 * 64);
  EXPECT_EQ(attention_core_flops(config, {4, 4}), attention_core_flops(config, {8}) / 2);
  EXPECT_EQ(attention_core_flops(config, {}), 0);
}

}  // namespace
}  // namespace deltron
