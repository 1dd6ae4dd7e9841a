// The whole model on a GPU: loss and every gradient as on the CPU, the same bits when repeated, recompute bitwise, the plan's
// bytes.
#include <cmath>

#include "src/autograd/engine.h"
#include "tests/support/tiny_model.h"

namespace deltron {
namespace {

using namespace test;

double difference(const std::vector<double>& ours, const std::vector<double>& expected) {
  double sum = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    sum += (ours[i] - expected[i]) * (ours[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(sum / size);
}

TransformerConfig with_dropout() {
  TransformerConfig config = tiny_config();
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.3;
  return config;
}

TEST(ModelOnCuda, loss_and_gradients_are_those_of_the_cpu_in_every_variant) {
  for (const Switch& variant : switches()) {
    SCOPED_TRACE(variant.name);
    TransformerConfig config = tiny_config();
    variant.turn(config);
    const test::Batch batch = packed_batch({70, 9, 1, 66}, config.vocab_size);
    ModelRun cpu(config, DType::F32, 1, DeviceKind::Cpu), cuda(config, DType::F32, 1, DeviceKind::Cuda);
    const std::vector<double> expected = cpu.loss_and_gradients(batch), ours = cuda.loss_and_gradients(batch);
    ASSERT_EQ(ours.size(), expected.size());
    EXPECT_NEAR(ours[0], expected[0], 1e-5 * std::fabs(expected[0]));
    EXPECT_LT(difference(ours, expected), 2e-5);
  }
}

TEST(ModelOnCuda, bf16_is_as_near_to_fp32_as_on_the_cpu) {
  const test::Batch batch = packed_batch({70, 9, 1, 66}, tiny_config().vocab_size);
  ModelRun exact(tiny_config(), DType::F32, 1, DeviceKind::Cpu), cpu(tiny_config(), DType::BF16, 1, DeviceKind::Cpu),
      cuda(tiny_config(), DType::BF16, 1, DeviceKind::Cuda);
  const std::vector<double> expected = exact.loss_and_gradients(batch);
  const double on_cpu = difference(cpu.loss_and_gradients(batch), expected),
               on_cuda = difference(cuda.loss_and_gradients(batch), expected);
  EXPECT_LT(on_cuda, 1.5 * on_cpu + 1e-3) << "on the cpu " << on_cpu;
}

TEST(ModelOnCuda, the_same_bits_when_repeated_and_across_contexts) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    std::vector<std::uint64_t> first;
    const test::Batch batch = packed_batch({70, 9, 1, 66}, 13);
    for (int context = 0; context < 2; ++context) {
      ModelRun run(with_dropout(), dtype, 1, DeviceKind::Cuda);
      for (int step = 0; step < 4; ++step) {
        const std::vector<std::uint64_t> bits = bits_of(run.loss_and_gradients(batch));
        if (first.empty()) first = bits;
        ASSERT_TRUE(bits == first) << dtype_name(dtype) << " context " << context << " step " << step;
      }
    }
  }
}

TEST(ModelOnCuda, memory_is_steady_from_step_to_step_and_the_plan_counts_it) {
  const auto step = [](DeviceKind device) {
    ContextOptions options = small_context(1, device);
    options.planned_device = DeviceKind::Cuda;
    Context ctx(options);
    HybridLanguageModel model(ctx, with_dropout(), DType::BF16, true, 17);
    const test::Batch batch = packed_batch({70, 9, 1, 66}, 13);
    for (int i = 0; i < 3; ++i) {
      const auto layout = std::make_shared<const SequenceLayout>(ctx, batch.offsets, batch.offsets.back());
      if (i == 0 && device == DeviceKind::Cuda) model.parameters().initialise(ctx, 5);
      model.parameters().zero_main_gradients(ctx);
      const Tensor loss =
          model.loss(ctx, int_tensor(ctx, batch.ids), int_tensor(ctx, batch.labels, "labels"), layout, {.training = true}, 0.1);
      backward(ctx, {loss}, {make_tensor(ctx, {1}, DType::F64, {1}, "seed")});
    }
    return ctx.memory()->stats();
  };
  const MemoryStats cuda = step(DeviceKind::Cuda), meta = step(DeviceKind::Meta);
  EXPECT_EQ(meta.peak, cuda.peak);
  EXPECT_EQ(meta.by_tag_at_peak, cuda.by_tag_at_peak);
  EXPECT_EQ(meta.peak_saved, cuda.peak_saved);
  EXPECT_EQ(meta.current, cuda.current);
}

TEST(ModelOnCuda, the_host_never_waits_inside_forward_and_backward) {
  ModelRun run(with_dropout(), DType::BF16, 1, DeviceKind::Cuda);
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
