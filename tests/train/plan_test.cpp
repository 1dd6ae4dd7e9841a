// The plan against what training really takes: every tag and the whole within five percent of the measured peak.
#include "src/train/plan.h"

#include <cmath>

#include "src/train/step.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

void expect_within_five_percent(const RunConfig& config) {
  const MemoryStats planned = make_plan(config).memory;
  const MemoryStats measured = run_training(config).memory;
  const auto near = [](std::int64_t plan, std::int64_t truth) {
    return std::abs(static_cast<double>(plan - truth)) <= 0.05 * static_cast<double>(truth);
  };
  EXPECT_TRUE(near(planned.peak, measured.peak)) << "planned " << planned.peak << ", measured " << measured.peak;
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    const auto i = static_cast<std::size_t>(tag);
    EXPECT_TRUE(near(planned.by_tag_at_peak[i], measured.by_tag_at_peak[i]))
        << memory_tag_name(static_cast<MemoryTag>(tag)) << ": planned " << planned.by_tag_at_peak[i] << ", measured " << measured.by_tag_at_peak[i];
  }
  EXPECT_GT(measured.by_tag_at_peak[static_cast<std::size_t>(MemoryTag::Activations)], 0);
}

RunConfig kjv(const std::string& prefix, const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = overrides;
  all.insert(all.end(), {"data.data_path=[" + prefix + "]", "checkpoint.save=", "checkpoint.save_interval=0", "checkpoint.keep_last=0",
                         "training.train_iters=2", "optimizer.lr_warmup_iters=2"});
  return load_run_config(std::string(DELTRON_SOURCE_DIR) + "/configs/kjv_tiny.yaml", all);
}

TEST(Plan, kjv_tiny_takes_what_was_planned) {
  TempFolder folder;
  expect_within_five_percent(kjv(prepare_text(folder, "text", made_text(30, 4000))));
}

TEST(Plan, short_documents_take_what_was_planned_for_whole_windows) {
  TempFolder folder;  // about five documents a window
  expect_within_five_percent(kjv(prepare_text(folder, "text", made_text(1500, 50))));
}

TEST(Plan, kjv_tiny_in_bf16_takes_what_was_planned) {
  TempFolder folder;
  expect_within_five_percent(kjv(prepare_text(folder, "text", made_text(30, 4000)), {"training.bf16=true"}));
}

TEST(Plan, a_hybrid_with_dropout_and_accumulation_takes_what_was_planned) {
  TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(60, 2000));
  for (const char* bf16 : {"training.bf16=false", "training.bf16=true"}) {
    expect_within_five_percent(tiny_config(prefix, {bf16, "training.seq_length=256", "training.train_iters=4", "training.threads=2"}));
  }
}

TEST(Plan, both_variants_with_and_without_each_fusion_take_what_was_planned) {
  TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(60, 2000));
  for (const char* variant : {"gdn", "gdn2"}) {
    for (const char* pre_rule : {"false", "true"}) {
      for (const char* output_norm : {"false", "true"}) {
        SCOPED_TRACE(std::string(variant) + pre_rule + output_norm);
        expect_within_five_percent(tiny_config(
            prefix, {"training.bf16=true", "training.seq_length=256", "training.train_iters=4", std::string("model.experimental_attention_variant=") + variant,
                     std::string("model.gdn_pre_gated_delta_rule_fusion=") + pre_rule, std::string("model.gdn_gated_output_norm_fusion=") + output_norm}));
      }
    }
  }
}

TEST(Plan, counts_parameters_tokens_and_flops_of_the_real_model) {
  const RunConfig config = tiny_config("unused");
  const Plan plan = make_plan(config);
  const Session session = make_session(config, true, DeviceKind::Cpu);
  EXPECT_EQ(plan.parameter_count, session.model->parameters().count());
  std::int64_t listed = 0;
  for (const PlanTensor& tensor : plan.parameters) listed += tensor.count;
  EXPECT_EQ(listed, plan.parameter_count);
  EXPECT_EQ(plan.tokens_per_step, 4 * 32);
  EXPECT_GT(plan.flops_per_token, 6.0 * static_cast<double>(plan.parameter_count - 264 * 32));
  const auto weights = plan.memory.by_tag_at_peak[static_cast<std::size_t>(MemoryTag::Weights)];
  EXPECT_GE(weights, 4 * plan.parameter_count);
  EXPECT_LE(weights, 4 * plan.parameter_count + 512 * static_cast<std::int64_t>(session.model->parameters().all().size()));
}

TEST(Plan, text_and_json_say_the_same) {
  const Plan plan = make_plan(tiny_config("unused"));
  const nlohmann::json json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json.at("parameters"), plan.parameter_count);
  EXPECT_EQ(json.at("peak_bytes"), plan.memory.peak);
  std::int64_t sum = 0;
  for (const auto& [tag, bytes] : json.at("peak_by_tag").items()) sum += bytes.get<std::int64_t>();
  EXPECT_EQ(sum, plan.memory.peak);
  EXPECT_EQ(json.at("tensors").size(), plan.parameters.size());
  EXPECT_FALSE(json.at("activations").empty());
  EXPECT_NE(to_text(plan).find("layer 1"), std::string::npos);
}

}  // namespace
}  // namespace deltron
