// cuDNN's attention inside the model: it is the one that runs, agrees with the own kernels, replays bitwise, never makes the host
// wait, and its workspace is what the plan counts.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/attention_cudnn.h"
#include "src/autograd/attention_choice.h"
#include "src/autograd/engine.h"
#include "src/nn/recompute_plan.h"
#include "tests/support/tiny_model.h"

namespace deltron {
namespace {

using namespace test;

TransformerConfig fused_config(AttentionBackend backend) {
  TransformerConfig config = tiny_config();
  config.kv_channels = 16;
  config.attention_backend = backend;
  return config;
}

#define NEEDS_CUDNN() \
  if (!kernels::cuda::fused_attention_info().found) GTEST_SKIP() << kernels::cuda::fused_attention_info().problem

const std::vector<std::vector<std::int64_t>>& layouts() {
  static const std::vector<std::vector<std::int64_t>> all = {{128, 128}, {70, 9, 1, 66}};
  return all;
}

double difference(const std::vector<double>& ours, const std::vector<double>& expected) {
  double sum = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    sum += (ours[i] - expected[i]) * (ours[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(sum / size);
}

TEST(AttentionOnCuda, auto_takes_cudnn_in_bf16_and_the_own_kernels_in_fp32) {
  NEEDS_CUDNN();
  ModelRun run(fused_config(AttentionBackend::Auto), DType::BF16, 1, DeviceKind::Cuda);
  run.loss_and_gradients(packed_batch({128, 128}, 13));
  EXPECT_GT(run.ctx.stream().attention->plans(), 0);
  ModelRun wide(fused_config(AttentionBackend::Auto), DType::F32, 1, DeviceKind::Cuda);
  wide.loss_and_gradients(packed_batch({128, 128}, 13));
  EXPECT_EQ(wide.ctx.stream().attention->plans(), 0);
  ModelRun local(fused_config(AttentionBackend::Local), DType::BF16, 1, DeviceKind::Cuda);
  local.loss_and_gradients(packed_batch({128, 128}, 13));
  EXPECT_EQ(local.ctx.stream().attention->plans(), 0);
}

TEST(AttentionOnCuda, is_as_near_to_fp32_as_the_own_kernels_are) {
  NEEDS_CUDNN();
  for (const std::vector<std::int64_t>& lengths : layouts()) {
    const test::Batch batch = packed_batch(lengths, 13);
    ModelRun exact(fused_config(AttentionBackend::Local), DType::F32, 1, DeviceKind::Cuda),
        own(fused_config(AttentionBackend::Local), DType::BF16, 1, DeviceKind::Cuda),
        fused(fused_config(AttentionBackend::Fused), DType::BF16, 1, DeviceKind::Cuda);
    const std::vector<double> expected = exact.loss_and_gradients(batch);
    const double by_own = difference(own.loss_and_gradients(batch), expected);
    EXPECT_LT(difference(fused.loss_and_gradients(batch), expected), 1.5 * by_own + 1e-3) << "own kernels: " << by_own;
  }
}

TEST(AttentionOnCuda, gives_the_same_bits_again_across_contexts_and_with_its_region_recomputed) {
  NEEDS_CUDNN();
  RecomputeConfig recompute;
  recompute.recompute_granularity = RecomputeGranularity::Selective;
  recompute.recompute_modules = {"core_attn"};
  for (const std::vector<std::int64_t>& lengths : layouts()) {
    const test::Batch batch = packed_batch(lengths, 13);
    ModelRun one(fused_config(AttentionBackend::Fused), DType::BF16, 1, DeviceKind::Cuda),
        two(fused_config(AttentionBackend::Fused), DType::BF16, 1, DeviceKind::Cuda);
    const std::vector<std::uint64_t> first = bits_of(one.loss_and_gradients(batch));
    EXPECT_TRUE(bits_of(one.loss_and_gradients(batch)) == first);
    EXPECT_TRUE(bits_of(two.loss_and_gradients(batch)) == first);
    two.model.parameters().zero_main_gradients(two.ctx);
    const Tensor loss = two.model.loss(two.ctx, int_tensor(two.ctx, batch.ids), int_tensor(two.ctx, batch.labels, "labels"),
                                       two.layout(batch), {.training = true, .recompute = make_recompute_plan(recompute)}, 0.1);
    std::vector<double> values = to_doubles(two.ctx, loss);
    backward(two.ctx, {loss}, {make_tensor(two.ctx, {1}, DType::F64, {1}, "seed")});
    for (const ParameterPtr& parameter : two.model.parameters().all()) {
      const std::vector<double> gradient = to_doubles(two.ctx, parameter->main_gradient);
      values.insert(values.end(), gradient.begin(), gradient.end());
    }
    EXPECT_TRUE(bits_of(values) == first) << "recomputed";
  }
}

TEST(AttentionOnCuda, documents_are_isolated) {
  NEEDS_CUDNN();
  ModelRun run(fused_config(AttentionBackend::Fused), DType::BF16, 1, DeviceKind::Cuda);
  const test::Batch before = packed_batch({70, 9, 1, 66}, 13), after = packed_batch({70, 9, 1, 66}, 13, {0, 1, 0, 0});
  const std::vector<double> a = to_doubles(run.ctx, run.logits(before)), b = to_doubles(run.ctx, run.logits(after));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::size_t token = i / 13;
    if (token < 70 || token >= 79) {
      ASSERT_EQ(a[i], b[i]) << "token " << token;
    }
  }
  EXPECT_NE(a, b);
}

TEST(AttentionOnCuda, the_plan_counts_its_workspace) {
  NEEDS_CUDNN();
  const auto step = [](DeviceKind device, const std::vector<std::int64_t>& lengths) {
    ContextOptions options = small_context(1, device);
    options.planned_device = DeviceKind::Cuda;
    Context ctx(options);
    HybridLanguageModel model(ctx, fused_config(AttentionBackend::Fused), DType::BF16, true, 17);
    const test::Batch batch = packed_batch(lengths, 13);
    for (int i = 0; i < 2; ++i) {
      const auto layout = std::make_shared<const SequenceLayout>(ctx, batch.offsets, batch.offsets.back());
      if (i == 0 && device == DeviceKind::Cuda) model.parameters().initialise(ctx, 5);
      model.parameters().zero_main_gradients(ctx);
      const Tensor loss =
          model.loss(ctx, int_tensor(ctx, batch.ids), int_tensor(ctx, batch.labels, "labels"), layout, {.training = true}, 0.1);
      backward(ctx, {loss}, {make_tensor(ctx, {1}, DType::F64, {1}, "seed")});
    }
    return ctx.memory()->stats();
  };
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{1024, 1024}, {700, 9, 1, 1066}}) {
    const MemoryStats cuda = step(DeviceKind::Cuda, lengths), meta = step(DeviceKind::Meta, lengths);
    EXPECT_EQ(meta.peak, cuda.peak);
    EXPECT_EQ(meta.by_tag_at_peak, cuda.by_tag_at_peak);
    EXPECT_EQ(meta.peak_saved, cuda.peak_saved);
  }
}

TEST(AttentionOnCuda, the_host_never_waits_for_packed_documents) {
  NEEDS_CUDNN();
  ModelRun run(fused_config(AttentionBackend::Fused), DType::BF16, 1, DeviceKind::Cuda);
  const test::Batch batch = packed_batch({70, 9, 1, 66}, 13);
  const auto step = [&] {
    run.model.parameters().zero_main_gradients(run.ctx);
    const Tensor loss = run.loss(batch);
    backward(run.ctx, {loss}, {make_tensor(run.ctx, {1}, DType::F64, {1}, "seed")});
  };
  step();
  run.ctx.synchronize();
  const std::int64_t before = run.ctx.host_synchronizations();
  step();
  EXPECT_EQ(run.ctx.host_synchronizations(), before);
}

}  // namespace
}  // namespace deltron
