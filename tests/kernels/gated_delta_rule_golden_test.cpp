// The gated delta rule against golden files (values made by automatic differentiation elsewhere), fp32 and bf16, within the
// limits that came with them. DELTRON_GOLDEN_DIR adds every op_gdn_* file of a folder to those in tests/golden.
#include <cstdlib>

#include <gtest/gtest.h>

#include "src/base/file.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_runner.h"
#include "tests/support/golden_file.h"

namespace deltron::test {
namespace {

std::vector<std::string> golden_paths() {
  std::vector<std::string> folders = {std::string(DELTRON_SOURCE_DIR) + "/tests/golden"};
  if (const char* more = std::getenv("DELTRON_GOLDEN_DIR")) folders.emplace_back(more);
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    for (const std::string& name : list_directory(folder)) {
      if (name.rfind("op_gdn_", 0) == 0) paths.push_back(join_path(folder, name));
    }
  }
  return paths;
}

DeltaRuleProblem problem_of(const GoldenFile& file) {
  DeltaRuleProblem p;
  p.key_heads = file.at("q").shape[1], p.key_dim = file.at("q").shape[2];
  p.value_heads = file.at("v").shape[1], p.value_dim = file.at("v").shape[2];
  for (double offset : file.at("cu_seqlens").values) p.offsets.push_back(static_cast<std::int64_t>(offset));
  p.l2norm = file.metadata.at("use_qk_l2norm") == "True";
  p.scale = std::stod(file.metadata.at("scale"));
  p.q = file.at("q").values, p.k = file.at("k").values, p.v = file.at("v").values;
  p.decay = file.at("g").values, p.beta = file.at("beta").values;
  p.initial_state = file.at("initial_state").values;
  p.d_o = file.at("d_o").values, p.d_final_state = file.at("d_final_state").values;
  return p;
}

void check(const std::string& path, DType dtype) {
  const GoldenFile file(path);
  DeltaRuleRun run;
  run.dtype = dtype;
  run.beta_dtype = dtype;
  const DeltaRuleOutcome outcome = run_gated_delta_rule(problem_of(file), run);
  const DeltaRuleResult& r = outcome.result;
  struct Row {
    const char* name;
    const std::vector<double>& ours;
    double fp32, bf16;
  };
  const Row rows[] = {{"o", r.o, 1e-5, 0.006},         {"final_state", r.final_state, 1e-5, 0.006},
                      {"d_q", r.d_q, 1e-5, 0.010},     {"d_k", r.d_k, 1e-5, 0.010},
                      {"d_v", r.d_v, 1e-5, 0.010},     {"d_initial_state", r.d_initial_state, 1e-5, 0.010},
                      {"d_g", r.d_decay, 1e-4, 0.015}, {"d_beta", r.d_beta, 1e-5, 0.015}};
  const bool same_keys = path.find("beta2_same_keys") != std::string::npos;
  std::string figures;
  for (const Row& row : rows) {
    const std::vector<double>& expected = file.at(row.name).values;
    bool all_zero = true;
    for (double value : expected) all_zero = all_zero && value == 0;
    const double limit = all_zero ? 1e-6 : dtype == DType::F32 ? row.fp32 : same_keys ? 0.020 : row.bf16;
    const double error = error_ratio(row.ours, expected);
    EXPECT_LE(error, limit) << path << " " << dtype_name(dtype) << " " << row.name;
    if (!(error <= limit)) ADD_FAILURE() << row.name << " is " << error;
    figures += std::string(row.name) + "=" + std::to_string(error / limit) + " ";
  }
  EXPECT_EQ(outcome.touched_outside, 0) << path;
  if (std::getenv("DELTRON_VERBOSE"))
    std::printf("%s %s (of limit): %s\n", base_name(path).c_str(), dtype_name(dtype), figures.c_str());
}

TEST(GatedDeltaRuleGolden, fp32_stays_within_the_limits) {
  const auto paths = golden_paths();
  ASSERT_GE(paths.size(), 8u);
  for (const std::string& path : paths) check(path, DType::F32);
}

TEST(GatedDeltaRuleGolden, bf16_stays_within_the_limits) {
  for (const std::string& path : golden_paths()) check(path, DType::BF16);
}

TEST(GatedDeltaRuleGolden, the_reference_itself_agrees) {
  for (const std::string& path : golden_paths()) {
    const GoldenFile file(path);
    const double limit = file.at("o").dtype == "F64" ? 1e-12 : 1e-6;
    const DeltaRuleResult r = reference_gated_delta_rule(problem_of(file));
    EXPECT_LE(error_ratio(r.o, file.at("o").values), limit) << path;
    EXPECT_LE(error_ratio(r.d_k, file.at("d_k").values), limit) << path;
    EXPECT_LE(error_ratio(r.d_decay, file.at("d_g").values), limit) << path;
    EXPECT_LE(error_ratio(r.d_initial_state, file.at("d_initial_state").values), limit) << path;
  }
}

}  // namespace
}  // namespace deltron::test
