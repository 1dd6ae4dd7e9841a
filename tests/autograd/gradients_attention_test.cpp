// Gradients of q/k preparation and softmax attention against finite differences in fp64.
#include "tests/autograd/gradient_harness.h"

namespace deltron {
namespace {

using test::check_gradients;
using test::layout_of;
using test::small_context;
using Tensors = std::vector<Tensor>;

TEST(AttentionGradients, prepare_heads_with_every_mix_of_norm_and_rotary_embedding) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 1, 1, 5, 9});
  for (bool norm : {false, true}) {
    for (bool zero_centered : {false, true}) {
      for (std::int64_t rotary : {0, 4, 6}) {
        if ((!norm && rotary == 0) || (!norm && zero_centered)) continue;
        HeadPrepOptions options;
        options.norm = norm;
        options.norm_options = {zero_centered, 1e-5};
        options.rotary_dim = rotary;
        options.rotary_base = 100;
        std::vector<test::Input> inputs = {{"x", {9, 16}}, {"v", {2, 4}}};
        if (norm) inputs.push_back({"weight", {6}, 0.3, 0.8});
        check_gradients(ctx, inputs, [&](const Tensors& in) {
          const Tensors parts = split(ctx, in[0], {{4, 0}, {12, 2}}, "split");  // strided heads
          return Tensors{prepare_heads(ctx, parts[1], norm ? in[2] : Tensor(), layout, options, "q"), linear(ctx, parts[0], in[1], "rest")};
        });
      }
    }
  }
}

TEST(AttentionGradients, prepare_heads_without_any_preparation_is_the_tensor_itself) {
  Context ctx(small_context());
  const Tensor x = make_leaf(test::random_tensor(ctx, {3, 2, 4}, DType::F64, 1), "x");
  const Tensor y = prepare_heads(ctx, x, {}, layout_of(ctx, {0, 3}), {}, "q");
  EXPECT_TRUE(y.same_view(x));
  EXPECT_EQ(y.extension(), x.extension());
}

TEST(AttentionGradients, attention_of_ragged_documents_grouped_heads_and_dropout) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 1, 1, 18, 23});
  for (double drop : {0.0, 0.3}) {
    for (std::int64_t groups : {1, 2, 4}) {
      AttentionOptions options;
      options.drop_probability = drop;
      options.site = {11, 3, kRngSiteAttentionDropout};
      if (groups == 2) options.scale = 0.7;
      check_gradients(ctx, {{"q", {23, 4, 5}}, {"k", {23, groups, 5}}, {"v", {23, groups, 5}}}, [&](const Tensors& in) {
        return Tensors{attention(ctx, in[0], in[1], in[2], layout, options, "core")};
      });
    }
  }
}

TEST(AttentionGradients, attention_reading_strided_pieces_of_one_projection) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 9, 20});
  check_gradients(ctx, {{"qkv", {20, 4 * 5 + 2 * 2 * 5}}}, [&](const Tensors& in) {
    const Tensors parts = split(ctx, in[0], {{20, 4}, {10, 2}, {10, 2}}, "split");
    return Tensors{attention(ctx, parts[0], parts[1], parts[2], layout, {}, "core")};
  });
}

TEST(AttentionGradients, attention_with_one_tensor_as_query_key_and_value) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 7, 12});
  check_gradients(ctx, {{"x", {12, 2, 4}}}, [&](const Tensors& in) {
    return Tensors{attention(ctx, in[0], in[0], in[0], layout, {}, "core")};
  });
}

}  // namespace
}  // namespace deltron
