// `deltron verify` passes on every golden file that is kept here, and fails, with the right code and words, on everything that is
// wrong.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include <nlohmann/json.hpp>

#include "src/base/file.h"
#include "src/checkpoint/safetensors.h"
#include "src/tensor/cuda_device.h"
#include "tests/checkpoint/temp_folder.h"
#include "tests/tools/run_cli.h"
#include "tools/verify/golden.h"

namespace deltron::tools {
namespace {

using deltron::testing::CliResult;
using deltron::testing::run_cli;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string golden(const std::string& name) { return std::string(DELTRON_SOURCE_DIR) + "/tests/golden/" + name; }

// A copy of a golden file with its tensors and metadata changed by `change`.
std::string changed_copy(const std::string& folder, const std::string& name,
                         const std::function<void(std::vector<HostArray>&, std::map<std::string, std::string>&)>& change) {
  const SafetensorsFile file(golden(name));
  std::vector<HostArray> arrays;
  for (const std::string& tensor : file.names()) arrays.push_back(file.read(tensor));
  std::map<std::string, std::string> metadata = file.metadata();
  change(arrays, metadata);
  std::vector<HostView> views;
  for (const HostArray& array : arrays) views.push_back(array.view());
  const std::string path = join_path(folder, base_name(name));
  write_safetensors(path, views, metadata);
  return path;
}

HostArray& named(std::vector<HostArray>& arrays, const std::string& name) {
  for (HostArray& array : arrays) {
    if (array.name == name) return array;
  }
  throw std::runtime_error("no tensor " + name);
}

void change_values(HostArray& array, const std::function<void(std::vector<double>&)>& change) {
  std::vector<double> values = to_doubles(array.view());
  change(values);
  array = from_doubles(array.name, array.dtype, array.shape, values);
}

TEST(Verify, every_golden_file_passes_in_fp32) {
  const CliResult result = run_cli({"verify", golden("")});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr(" 0 failed, 0 skipped"));
  for (const char* name :
       {"op_gdn_basic", "op_gdn_ragged_empty", "layer_gdn_dense", "layer_gdn_packed", "optim_adamw", "hf_qwen3_5_tiny"}) {
    EXPECT_THAT(result.out, ContainsRegex(std::string(name) + "[a-z.]*: passed")) << name;
  }
  EXPECT_THAT(result.out, HasSubstr("kernel cpu.chunked64."));
}

TEST(Verify, every_op_file_passes_in_bf16_and_the_rest_is_skipped_with_a_reason) {
  const CliResult result = run_cli({"verify", golden(""), "--dtype", "bf16"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr(" 0 failed, 6 skipped"));
  EXPECT_THAT(result.out, ContainsRegex("layer_gdn_dense.safetensors: skipped: limits exist for fp32 alone"));
}

TEST(Verify, json_holds_every_tensor_with_error_and_limit) {
  const CliResult result = run_cli({"verify", golden("op_gdn_basic.safetensors"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report.at("passed"), 1);
  const nlohmann::json& tensors = report.at("files").at(0).at("tensors");
  EXPECT_EQ(tensors.size(), 8u);
  for (const nlohmann::json& tensor : tensors) {
    EXPECT_GT(tensor.at("error").get<double>(), 0) << tensor;
    EXPECT_LE(tensor.at("error").get<double>(), tensor.at("limit").get<double>());
  }
}

TEST(Verify, a_changed_expected_value_fails_each_kind_and_names_the_tensor) {
  const TempFolder folder;
  const std::vector<std::pair<std::string, std::string>> rows = {{"op_gdn_basic.safetensors", "d_k"},
                                                                 {"layer_gdn_dense.safetensors", "d_conv1d.weight.key"},
                                                                 {"optim_adamw.safetensors", "exp_avg_sq.rows"}};
  for (const auto& row : rows) {
    const std::string& tensor = row.second;
    const std::string path = changed_copy(folder.path(), row.first, [&](auto& arrays, auto&) {
      change_values(named(arrays, tensor), [](std::vector<double>& values) {
        for (double& value : values) value *= 1.001;
      });
    });
    const CliResult result = run_cli({"verify", path});
    EXPECT_EQ(result.code, 8) << result.out;
    EXPECT_THAT(result.out, ContainsRegex(tensor + " .*FAILED"));
    EXPECT_THAT(result.out, HasSubstr("0 passed, 1 failed, 0 skipped"));
  }
}

TEST(Verify, a_renamed_tensor_is_an_error_with_the_nearest_name) {
  const TempFolder folder;
  const std::string path = changed_copy(folder.path(), "op_gdn_basic.safetensors",
                                        [](auto& arrays, auto&) { named(arrays, "final_state").name = "finl_state"; });
  const CliResult result = run_cli({"verify", path});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("E320 "));
  EXPECT_THAT(result.err, HasSubstr("'finl_state'"));
  EXPECT_THAT(result.err, HasSubstr("nearest: final_state"));
}

// A copy of the model folder with one of its files changed.
void copy_model(const std::string& folder, const std::string& changed,
                const std::function<void(std::vector<HostArray>&, std::map<std::string, std::string>&)>& change) {
  for (const std::string& name : list_directory(golden("hf_qwen3_5_tiny"))) {
    const std::string source = "hf_qwen3_5_tiny/" + name;
    if (name == changed)
      changed_copy(folder, source, change);
    else
      write_file_atomically(join_path(folder, name), read_file(golden(source)));
  }
}

TEST(Verify, a_changed_model_weight_or_expectation_fails) {
  const std::vector<std::pair<std::string, std::string>> rows = {{"model.safetensors", "model.layers.2.linear_attn.conv1d.weight"},
                                                                 {"expected.safetensors", "grad.model.layers.0.linear_attn.A_log"},
                                                                 {"expected.safetensors", "adamw_losses"}};
  for (const auto& row : rows) {
    const TempFolder folder;
    const std::string& tensor = row.second;
    copy_model(folder.path(), row.first, [&](auto& arrays, auto&) {
      change_values(named(arrays, tensor), [](std::vector<double>& values) {
        for (double& value : values) value *= 1.01;
      });
    });
    const CliResult result = run_cli({"verify", folder.path()});
    EXPECT_EQ(result.code, 8) << tensor << result.out << result.err;
  }
}

TEST(Verify, unknown_tensors_of_a_model_are_errors_with_the_nearest_name) {
  const TempFolder weights, expectations;
  copy_model(weights.path(), "model.safetensors",
             [](auto& arrays, auto&) { named(arrays, "model.norm.weight").name = "model.nrom.weight"; });
  const CliResult first = run_cli({"verify", weights.path()});
  EXPECT_EQ(first.code, 4);
  EXPECT_THAT(first.err, HasSubstr("model.nrom.weight"));
  EXPECT_THAT(first.err, HasSubstr("nearest: model.norm.weight"));
  copy_model(expectations.path(), "expected.safetensors", [](auto& arrays, auto&) {
    named(arrays, "grad.model.layers.0.mlp.up_proj.weight").name = "grad.model.layers.0.mlp.pu_proj.weight";
  });
  const CliResult second = run_cli({"verify", expectations.path()});
  EXPECT_EQ(second.code, 3);
  EXPECT_THAT(second.err, HasSubstr("nearest: model.layers.0.mlp.up_proj.weight"));
}

TEST(Verify, bad_paths_options_and_files_have_their_exit_codes) {
  const TempFolder empty;
  const TempFolder broken;
  const std::string bytes = read_file(golden("op_gdn_basic.safetensors"));
  write_file_atomically(join_path(broken.path(), "op_gdn_basic.safetensors"), bytes.substr(0, bytes.size() - 8));
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>> rows = {
      {{"verify", "no/such/file.safetensors"}, 2, "E101"},
      {{"verify", empty.path()}, 3, "E320"},
      {{"verify", join_path(broken.path(), "op_gdn_basic.safetensors")}, 4, "E403"},
      {{"verify", golden("op_gdn_basic.safetensors"), "--dtype", "fp16"}, 2, "E123"},
      {{"verify", golden("op_gdn_basic.safetensors"), "--dtype", "fp8"}, 2, "E100"},
  };
  for (const auto& [arguments, code, message] : rows) {
    const CliResult result = run_cli(arguments);
    EXPECT_EQ(result.code, code) << message << result.out;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
  const CliResult on_cuda = run_cli({"verify", golden("op_gdn_basic.safetensors"), "--device", "cuda"});
  EXPECT_EQ(on_cuda.code, cuda_status().usable ? 0 : 2);
  if (!cuda_status().usable) {
    EXPECT_THAT(on_cuda.err, HasSubstr("E126 training.device or --device: device cuda cannot be used"));
    EXPECT_THAT(on_cuda.err, HasSubstr(cuda_status().problem));
  }
  const CliResult folder = run_cli({"verify", broken.path()});
  EXPECT_EQ(folder.code, 4);
  EXPECT_THAT(folder.out, HasSubstr("0 passed, 1 failed, 0 skipped"));
}

TEST(Verify, a_file_in_a_folder_that_cannot_be_read_does_not_hide_the_others) {
  const TempFolder folder;
  write_file_atomically(join_path(folder.path(), "op_gdn_a.safetensors"), "short");
  write_file_atomically(join_path(folder.path(), "op_gdn_basic.safetensors"), read_file(golden("op_gdn_basic.safetensors")));
  const CliResult result = run_cli({"verify", folder.path()});
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.out, HasSubstr("1 passed, 1 failed, 0 skipped"));
}

TEST(Verify, gdn2_runs_rule_2_and_its_mixer_and_names_their_kernel) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const CliResult op = run_cli({"verify", golden("op_gdn2_ragged_empty.safetensors"), "--dtype", dtype, "--json"});
    EXPECT_EQ(op.code, 0) << op.out << op.err;
    EXPECT_THAT(op.out, HasSubstr("cpu.chunked64x16."));
    EXPECT_THAT(op.out, HasSubstr("d_w"));
  }
  const CliResult layer = run_cli({"verify", golden("layer_gdn2_packed.safetensors"), "--json"});
  EXPECT_EQ(layer.code, 0) << layer.out << layer.err;
  EXPECT_THAT(layer.out, HasSubstr("d_in_proj.weight.f"));
  EXPECT_THAT(layer.out, HasSubstr("d_in_proj.weight.f, fused")) << "layers run with both fusions too";
}

TEST(Verify, a_file_of_rule_2_under_the_name_of_rule_1_is_refused) {
  const TempFolder folder;
  write_file_atomically(join_path(folder.path(), "op_gdn_basic.safetensors"), read_file(golden("op_gdn2_basic.safetensors")));
  const CliResult result = run_cli({"verify", join_path(folder.path(), "op_gdn_basic.safetensors")});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("beta"));
}

TEST(Verify, inputs_that_bf16_cannot_hold_are_refused) {
  const TempFolder folder;
  const std::string path = changed_copy(folder.path(), "op_gdn_basic.safetensors", [](auto& arrays, auto&) {
    HostArray& v = named(arrays, "v");
    std::vector<double> values = to_doubles(v.view());
    values[0] = 1.0 + 1.0 / 4096;
    v = from_doubles("v", DType::F32, v.shape, values);
  });
  const CliResult result = run_cli({"verify", path, "--dtype", "bf16"});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("tensor 'v' is not exact in bf16"));
}

TEST(Verify, comparisons_refuse_nan_and_measure_zeros_absolutely) {
  EXPECT_FALSE(compare_values("a", {1.0, std::nan("")}, {1.0, 1.0}, 10.0).passed);
  EXPECT_FALSE(compare_values("a", {INFINITY}, {INFINITY}, 10.0).passed);
  EXPECT_TRUE(compare_values("a", {1e-7}, {0.0}, 1e-9).passed);
  EXPECT_FALSE(compare_values("a", {2e-6}, {0.0}, 1.0).passed);
  EXPECT_DOUBLE_EQ(compare_values("a", {3.0, 4.0}, {3.0, 5.0}, 1.0).error, 1.0 / std::sqrt(34.0));
  EXPECT_TRUE(compare_number("a", 1.0, 1.0, 0.0).passed);
}

}  // namespace
}  // namespace deltron::tools
