// Which kernels a run's softmax attention gets: said by the plan, refused where the configuration insists on what cannot be had.
#include "src/train/attention_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/autograd/attention_choice.h"
#include "src/base/build_options.h"
#include "src/base/error.h"
#include "src/train/plan.h"
#if DELTRON_HAVE_CUDA
#include "kernels/cuda/attention_cudnn.h"
#endif

namespace deltron {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

RunConfig hybrid() {
  RunConfig config;
  TransformerConfig& m = config.model;
  m.num_layers = 2, m.hidden_size = 64, m.ffn_hidden_size = 64, m.vocab_size = 64;
  m.num_attention_heads = 4, m.num_query_groups = 2, m.kv_channels = 16;
  config.training.micro_batch_size = config.training.global_batch_size = 2;
  config.training.seq_length = 256;
  config.optimizer.lr = 1e-3;
  return config;
}

ErrorCode code_of(Context& ctx, const RunConfig& config, std::string& text) {
  try {
    attention_report(ctx, config);
  } catch (const Error& error) {
    text = error.what();
    return error.code();
  }
  ADD_FAILURE() << "nothing thrown";
  return ErrorCode::InternalFault;
}

TEST(AttentionReport, says_own_kernels_on_the_cpu_for_auto_and_local) {
  Context ctx;
  RunConfig config = hybrid();
  EXPECT_EQ(attention_report(ctx, config), "2 layers by own kernels");
  config.model.attention_backend = AttentionBackend::Local;
  EXPECT_EQ(attention_report(ctx, config), "2 layers by own kernels (attention_backend: local)");
  EXPECT_EQ(attention_kernels(ctx, config), "own kernels");
}

TEST(AttentionReport, is_empty_without_softmax_attention) {
  Context ctx;
  RunConfig config = hybrid();
  config.model.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  config.model.linear_attention_freq.interval = 0;
  EXPECT_EQ(attention_report(ctx, config), "");
  EXPECT_EQ(attention_kernels(ctx, config), "");
}

TEST(AttentionReport, refuses_fused_on_the_cpu_with_the_reason) {
  Context ctx;
  RunConfig config = hybrid();
  config.model.attention_backend = AttentionBackend::Fused;
  std::string text;
  EXPECT_EQ(code_of(ctx, config, text), ErrorCode::DeviceUnavailable);
  EXPECT_THAT(text, HasSubstr("device cpu"));
}

#if DELTRON_HAVE_CUDA
// A plan for cuda on this machine; what it assumes depends on the machine, that it says so does not.
struct PlannedForCuda {
  PlannedForCuda() {
    ContextOptions options;
    options.device = DeviceKind::Meta;
    options.planned_device = DeviceKind::Cuda;
    ctx = std::make_unique<Context>(options);
    config = hybrid();
    config.training.device = DeviceKind::Cuda;
    config.training.bf16 = true;
    fused = choose_attention(*ctx, AttentionBackend::Auto, {DType::BF16, 4, 2, 16, 0, 256}).fused;
  }
  std::unique_ptr<Context> ctx;
  RunConfig config;
  bool fused = false;
};

TEST(AttentionReport, of_a_plan_says_what_it_assumes) {
  PlannedForCuda plan;
  const std::string report = attention_report(*plan.ctx, plan.config);
  if (plan.fused) {
    EXPECT_THAT(report, StartsWith("2 layers by cuDNN"));
    EXPECT_EQ(report.find("assumed") != std::string::npos, !kernels::cuda::fused_attention_info().found) << report;
  } else {
    EXPECT_THAT(report, StartsWith("2 layers by own kernels ("));
  }
  EXPECT_THAT(to_text(make_plan(plan.config)), HasSubstr("attention   " + report));
}

TEST(AttentionReport, of_auto_gives_the_reason_for_the_own_kernels) {
  PlannedForCuda plan;
  if (!plan.fused) GTEST_SKIP() << "no fused kernels for a plan here";
  plan.config.model.attention_dropout = 0.1;
  EXPECT_THAT(attention_report(*plan.ctx, plan.config), HasSubstr("own kernels (cuDNN cannot: attention_dropout is on"));
  plan.config.model.attention_dropout = 0;
  plan.config.training.bf16 = false;
  EXPECT_THAT(attention_report(*plan.ctx, plan.config), HasSubstr("dtype fp32"));
}

TEST(AttentionReport, of_fused_refuses_what_the_kernels_do_not_take) {
  PlannedForCuda plan;
  if (!plan.fused) GTEST_SKIP() << "no fused kernels for a plan here";
  plan.config.model.attention_backend = AttentionBackend::Fused;
  EXPECT_THAT(attention_report(*plan.ctx, plan.config), StartsWith("2 layers by cuDNN"));
  plan.config.model.kv_channels = 12;
  std::string text;
  EXPECT_EQ(code_of(*plan.ctx, plan.config, text), ErrorCode::ConfigInconsistent);
  EXPECT_THAT(text, HasSubstr("heads of 12 channels"));
}

// The score matrix of the fused backward shows in the plan: 2 documents x 4 heads x 4096^2 x 2 bytes, of which half must show at
// least.
TEST(AttentionReport, of_a_plan_counts_the_workspace_of_the_kernels_it_names) {
  PlannedForCuda plan;
  if (!plan.fused) GTEST_SKIP() << "no fused kernels for a plan here";
  plan.config.training.seq_length = 4096;
  const std::int64_t fused = make_plan(plan.config).memory.peak;
  plan.config.model.attention_backend = AttentionBackend::Local;
  const std::int64_t local = make_plan(plan.config).memory.peak;
  EXPECT_GT(fused - local, std::int64_t{2} * 4 * 4096 * 4096);
}
#endif

}  // namespace
}  // namespace deltron
