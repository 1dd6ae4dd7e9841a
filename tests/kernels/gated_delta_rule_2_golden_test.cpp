// Gated delta rule 2 against golden files (values made by automatic differentiation elsewhere), fp32 and bf16, within the limits
// that came with them. DELTRON_GOLDEN_DIR adds every op_gdn2_* file of a folder to those in tests/golden.
#include <cstdlib>

#include <gtest/gtest.h>

#include "src/base/file.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_2_runner.h"
#include "tests/support/golden_file.h"

namespace deltron::test {
namespace {

std::vector<std::string> golden_paths() {
  std::vector<std::string> folders = {std::string(DELTRON_SOURCE_DIR) + "/tests/golden"};
  if (const char* more = std::getenv("DELTRON_GOLDEN_DIR")) folders.emplace_back(more);
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    for (const std::string& name : list_directory(folder)) {
      if (name.rfind("op_gdn2_", 0) == 0) paths.push_back(join_path(folder, name));
    }
  }
  return paths;
}

DeltaRule2Problem problem_of(const GoldenFile& file) {
  DeltaRule2Problem p;
  p.key_heads = file.at("q").shape[1], p.key_dim = file.at("q").shape[2];
  p.value_heads = file.at("v").shape[1], p.value_dim = file.at("v").shape[2];
  p.gate_heads = file.at("g").shape[1];
  for (double offset : file.at("cu_seqlens").values) p.offsets.push_back(static_cast<std::int64_t>(offset));
  p.l2norm = file.metadata.at("use_qk_l2norm") == "True";
  p.scale = std::stod(file.metadata.at("scale"));
  p.q = file.at("q").values, p.k = file.at("k").values, p.v = file.at("v").values;
  p.decay = file.at("g").values, p.erase = file.at("b").values, p.write = file.at("w").values;
  p.initial_state = file.at("initial_state").values;
  p.d_o = file.at("d_o").values, p.d_final_state = file.at("d_final_state").values;
  return p;
}

struct Row {
  const char* name;
  std::vector<double> DeltaRule2Result::*values;
  double fp32, bf16;
};
const Row kRows[] = {
    {"o", &DeltaRule2Result::o, 1e-5, 0.006},         {"final_state", &DeltaRule2Result::final_state, 1e-5, 0.006},
    {"d_q", &DeltaRule2Result::d_q, 1e-5, 0.010},     {"d_k", &DeltaRule2Result::d_k, 1e-5, 0.010},
    {"d_v", &DeltaRule2Result::d_v, 1e-5, 0.010},     {"d_initial_state", &DeltaRule2Result::d_initial_state, 1e-5, 0.010},
    {"d_g", &DeltaRule2Result::d_decay, 1e-4, 0.015}, {"d_b", &DeltaRule2Result::d_erase, 1e-5, 0.015},
    {"d_w", &DeltaRule2Result::d_write, 1e-5, 0.015}};

void check(const std::string& path, DType dtype) {
  const GoldenFile file(path);
  DeltaRule2Run run;
  run.dtype = run.gate_dtype = dtype;
  const DeltaRule2Outcome outcome = run_gated_delta_rule_2(problem_of(file), run);
  std::string figures;
  for (const Row& row : kRows) {
    const std::vector<double>& expected = file.at(row.name).values;
    bool all_zero = true;
    for (double value : expected) all_zero = all_zero && value == 0;
    const double limit = all_zero ? 1e-6 : dtype == DType::F32 ? row.fp32 : row.bf16;
    const double error = error_ratio(outcome.result.*row.values, expected);
    EXPECT_LE(error, limit) << path << " " << dtype_name(dtype) << " " << row.name;
    figures += std::string(row.name) + "=" + std::to_string(error / limit) + " ";
  }
  EXPECT_EQ(outcome.touched_outside, 0) << path;
  if (std::getenv("DELTRON_VERBOSE"))
    std::printf("%s %s (of limit): %s\n", base_name(path).c_str(), dtype_name(dtype), figures.c_str());
}

TEST(GatedDeltaRule2Golden, fp32_stays_within_the_limits) {
  const auto paths = golden_paths();
  ASSERT_GE(paths.size(), 6u);
  for (const std::string& path : paths) check(path, DType::F32);
}

TEST(GatedDeltaRule2Golden, bf16_stays_within_the_limits) {
  for (const std::string& path : golden_paths()) check(path, DType::BF16);
}

TEST(GatedDeltaRule2Golden, the_reference_itself_agrees) {
  for (const std::string& path : golden_paths()) {
    const GoldenFile file(path);
    const double limit = file.at("o").dtype == "F64" ? 1e-12 : 1e-6;
    const DeltaRule2Result r = reference_gated_delta_rule_2(problem_of(file));
    for (const Row& row : kRows) EXPECT_LE(error_ratio(r.*row.values, file.at(row.name).values), limit) << path << " " << row.name;
  }
}

}  // namespace
}  // namespace deltron::test
