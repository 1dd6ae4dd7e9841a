// Gradients of products, norms, SwiGLU, splitting, dropout, gates, embedding and the loss against finite differences in fp64.
#include "tests/autograd/gradient_harness.h"

namespace deltron {
namespace {

using test::check_gradients;
using test::int_tensor;
using test::layout_of;
using test::small_context;
using Tensors = std::vector<Tensor>;

TEST(Gradients, linear_of_packed_and_strided_input) {
  Context ctx(small_context());
  check_gradients(ctx, {{"x", {7, 5}}, {"w", {3, 5}}}, [&](const Tensors& in) { return Tensors{linear(ctx, in[0], in[1], "y")}; });
  check_gradients(ctx, {{"x", {7, 12}}, {"a", {3, 5}}, {"b", {2, 7}}}, [&](const Tensors& in) {
    const Tensors parts = split(ctx, in[0], {{5, 0}, {7, 0}}, "split");
    return Tensors{linear(ctx, parts[0], in[1], "a"), linear(ctx, parts[1], in[2], "b")};
  });
}

TEST(Gradients, linear_with_one_weight_used_twice) {
  Context ctx(small_context());
  check_gradients(ctx, {{"x", {6, 4}}, {"w", {4, 4}}}, [&](const Tensors& in) {
    return Tensors{linear(ctx, linear(ctx, in[0], in[1], "first"), in[1], "second")};
  });
}

TEST(Gradients, norm_linear_plain_and_zero_centred_with_one_and_two_projections) {
  Context ctx(small_context());
  for (bool zero_centered : {false, true}) {
    const NormOptions norm{zero_centered, 1e-5};
    check_gradients(ctx, {{"x", {7, 5}}, {"g", {5}, 0.3, 0.7}, {"w", {3, 5}}}, [&](const Tensors& in) {
      return norm_linear(ctx, in[0], in[1], norm, {in[2]}, {"y"});
    });
    check_gradients(ctx, {{"x", {7, 9}}, {"g", {5}, 0.3, 0.7}, {"a", {3, 5}}, {"b", {6, 5}}, {"c", {2, 4}}}, [&](const Tensors& in) {
      const Tensors parts = split(ctx, in[0], {{5, 0}, {4, 0}}, "split");  // a strided residual stream
      Tensors outputs = norm_linear(ctx, parts[0], in[1], norm, {in[2], in[3]}, {"a", "b"});
      outputs.push_back(linear(ctx, parts[1], in[4], "c"));
      return outputs;
    });
  }
}

TEST(Gradients, swiglu_linear_of_packed_and_strided_input) {
  Context ctx(small_context());
  check_gradients(ctx, {{"x", {7, 10}}, {"w", {3, 5}}}, [&](const Tensors& in) { return Tensors{swiglu_linear(ctx, in[0], in[1], "y")}; });
  check_gradients(ctx, {{"x", {7, 14}}, {"w", {3, 5}}, {"v", {2, 4}}}, [&](const Tensors& in) {
    const Tensors parts = split(ctx, in[0], {{4, 0}, {10, 0}}, "split");
    return Tensors{swiglu_linear(ctx, parts[1], in[1], "y"), linear(ctx, parts[0], in[2], "z")};
  });
}

TEST(Gradients, dropout_add_with_and_without_dropout) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 1, 1, 6, 9});
  for (double drop : {0.0, 0.4}) {
    check_gradients(ctx, {{"x", {9, 7}}, {"residual", {9, 7}}}, [&](const Tensors& in) {
      return Tensors{dropout_add(ctx, in[0], in[1], layout, {3, 2, kRngSiteHiddenDropoutMlp}, drop, "y")};
    });
    check_gradients(ctx, {{"x", {9, 7}}}, [&](const Tensors& in) {  // one tensor on both sides
      return Tensors{dropout_add(ctx, in[0], in[0], layout, {3, 2, kRngSiteHiddenDropoutMlp}, drop, "y")};
    });
  }
}

TEST(Gradients, sigmoid_gate_with_a_strided_gate) {
  Context ctx(small_context());
  check_gradients(ctx, {{"x", {7, 6}}, {"gates", {7, 9}}, {"w", {2, 3}}}, [&](const Tensors& in) {
    const Tensors parts = split(ctx, in[1], {{3, 0}, {6, 0}}, "split");
    return Tensors{sigmoid_gate(ctx, in[0], parts[1], "y"), linear(ctx, parts[0], in[2], "z")};
  });
}

TEST(Gradients, embedding_with_repeated_and_unused_rows_and_tied_to_the_output) {
  Context ctx(small_context());
  const Tensor ids = int_tensor(ctx, {3, 0, 3, 3, 6, 1});
  check_gradients(ctx, {{"table", {8, 5}}}, [&](const Tensors& in) { return Tensors{embedding(ctx, ids, in[0], DType::F64, "x")}; });
  check_gradients(ctx, {{"table", {8, 5}}, {"g", {5}, 0.2, 1.0}}, [&](const Tensors& in) {
    return norm_linear(ctx, embedding(ctx, ids, in[0], DType::F64, "x"), in[1], NormOptions{}, {in[0]}, {"logits"});
  });
}

TEST(Gradients, cross_entropy_with_masked_rows_and_scale) {
  Context ctx(small_context());
  const Tensor labels = int_tensor(ctx, {2, -1, 10, 0, -1, 7}, "labels");
  const LayoutPtr layout = layout_of(ctx, {0, 6});
  const Tensor nothing = Tensor::zeros(ctx, {6, 11}, DType::F64, "nothing");
  check_gradients(ctx, {{"logits", {6, 11}, 2.0}}, [&](const Tensors& in) {
    // The loss overwrites its logits, so it gets a sum of its own.
    return Tensors{cross_entropy(ctx, dropout_add(ctx, in[0], nothing, layout, {}, 0, "copy"), labels, 0.25)};
  });
}

TEST(Losses, are_the_cross_entropy_of_valid_rows_and_zero_elsewhere) {
  Context ctx(small_context());
  const Tensor labels = int_tensor(ctx, {2, -1, 10, 0}, "labels"), logits = test::random_tensor(ctx, {4, 11}, DType::F64, 1, 3.0);
  const std::vector<double> scores = to_doubles(ctx, logits), losses = to_doubles(ctx, token_losses(ctx, logits, labels));
  const int target[] = {2, -1, 10, 0};
  double total = 0;
  for (std::size_t row = 0; row < 4; ++row) {
    double sum = 0;
    for (std::size_t v = 0; v < 11; ++v) sum += std::exp(scores[row * 11 + v]);
    const double expected = target[row] < 0 ? 0 : std::log(sum) - scores[row * 11 + static_cast<std::size_t>(target[row])];
    EXPECT_NEAR(losses[row], expected, 1e-12);
    total += expected;
  }
  EXPECT_NEAR(to_doubles(ctx, cross_entropy(ctx, logits, labels, 0.5))[0], 0.5 * total, 1e-12);
}

TEST(GradCheck, finds_a_wrong_gradient) {
  Context ctx(small_context());
  const auto wrong = [&](const Tensors& in) {
    const Tensor y = test::times(ctx, in[0], 3, "y");
    if (!GraphRecorder::wanted(ctx, in)) return Tensors{y};
    auto node = std::make_shared<test::TracedNode>("wrong");
    GraphRecorder recorder(ctx, node);
    recorder.input(in[0], "x");
    node->run = [](Context& c, BackwardCall& call) { call.set_gradient(0, test::times(c, call.output_gradient(0), 3.0003, "gradient")); };
    return Tensors{recorder.output(y)};
  };
  const GradCheckResult result = grad_check(ctx, {{"x", test::random_tensor(ctx, {4}, DType::F64, 1)}}, wrong);
  EXPECT_GT(result.worst, 1e-5);
  EXPECT_EQ(result.where.substr(0, 2), "x[");
}

}  // namespace
}  // namespace deltron
