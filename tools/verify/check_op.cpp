// See checks.h: either delta rule alone.
#include <algorithm>
#include <map>
#include <memory>

#include "src/autograd/engine.h"
#include "src/autograd/functions_gdn2.h"
#include "src/base/bfloat16.h"
#include "src/base/file.h"
#include "tools/verify/checks.h"
#include "tools/verify/golden.h"
#include "tools/verify/rule_kernel.h"

namespace deltron::tools {
namespace {

// README of the golden files; identical keys with beta 2 amplify rounding.
double limit_of(const std::string& name, DType dtype, bool same_keys) {
  if (dtype == DType::F32) return name == "d_g" ? 1e-4 : 1e-5;
  if (same_keys) return 0.020;
  if (name == "o" || name == "final_state") return 0.006;
  if (name == "d_g" || name == "d_beta" || name == "d_b" || name == "d_w") return 0.015;
  return 0.010;
}

bool fits_fp16(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](double value) { return static_cast<double>(to_float(to_float16(static_cast<float>(value)))) == value; });
}

template <class Options>
Options options_of(const GoldenFile& golden) {
  const std::vector<std::int64_t> keys = golden.shape("k", 3), values = golden.shape("v", 3);
  Options options;
  options.key_heads = keys[1];
  options.key_dim = keys[2];
  options.value_heads = values[1];
  options.value_dim = values[2];
  options.use_qk_l2norm = golden.flag("use_qk_l2norm");
  options.scale = golden.number("scale");
  options.output_final_state = true;
  return options;
}

}  // namespace

void check_op(Context& ctx, const std::string& path, DType dtype, FileReport& report) {
  const GoldenFile golden(path);
  const bool second = base_name(path).rfind("op_gdn2_", 0) == 0;
  const std::vector<std::string> gates = second ? std::vector<std::string>{"g", "b", "w"} : std::vector<std::string>{"g", "beta"};
  std::vector<std::string> names = {"q", "k", "v", "initial_state"};
  names.insert(names.end(), gates.begin(), gates.end());
  std::vector<std::string> all = {"cu_seqlens", "d_o", "d_final_state", "o", "final_state"};
  for (const std::string& name : names) {
    all.push_back(name);
    all.push_back("d_" + name);
  }
  golden.require_names(all);
  if (golden.text("layout") != "thd") golden_error(path, "layout is not supported", golden.text("layout"), "thd");
  const auto layout = std::make_shared<const SequenceLayout>(ctx, golden.integers("cu_seqlens"), golden.shape("k", 3)[0]);

  if (dtype == DType::F16) {
    std::vector<std::string> operands = names;
    operands.push_back("d_o");
    for (const std::string& name : operands) {
      if (name == "g" || name == "initial_state" || fits_fp16(golden.values(name))) continue;
      report.skipped_because = "its values of '" + name + "' are not exact in fp16";
      return;
    }
  }
  // Log decays and states are fp32 whatever the operands are.
  std::map<std::string, Tensor> in;
  for (const std::string& name : names)
    in[name] = make_leaf(golden.tensor(ctx, name, name == "g" || name == "initial_state" ? DType::F32 : dtype), name);
  GatedDeltaRuleResult result;
  if (second) {
    GatedDeltaRule2Options options = options_of<GatedDeltaRule2Options>(golden);
    const std::int64_t gate_heads = golden.shape("g", 3)[1];
    options.gate_heads = gate_heads == options.key_heads ? GateHeads::Keys : GateHeads::Values;
    result = gated_delta_rule_2(ctx, {in["q"], in["k"], in["v"], in["g"], in["b"], in["w"], {}, {}, in["initial_state"]}, layout,
                                options, "verify");
  } else {
    const GatedDeltaRuleOptions options = options_of<GatedDeltaRuleOptions>(golden);
    result = gated_delta_rule(ctx, {in["q"], in["k"], in["v"], in["g"], in["beta"], {}, {}, in["initial_state"]}, layout, options,
                              "verify");
  }
  const Tensor d_o = golden.tensor(ctx, "d_o", dtype), d_final_state = golden.tensor(ctx, "d_final_state", DType::F32);
  if (d_o.count() != result.out.count() || d_final_state.shape() != result.final_state->shape()) {
    golden_error(path, "incoming gradients do not have the shapes of the results",
                 shape_text(d_o.shape()) + ", " + shape_text(d_final_state.shape()));
  }
  backward(ctx, {result.out, *result.final_state}, {d_o.view(result.out.shape()), d_final_state});

  report.kind = "op";
  report.dtype = dtype_name(dtype);
  const std::vector<std::int64_t> keys = golden.shape("k", 3), values = golden.shape("v", 3);
  report.kernel = rule_kernel_name(ctx, second, {keys[1], values[1], keys[2], values[2]}, dtype);
  const bool same_keys = base_name(path).rfind("op_gdn_beta2_same_keys", 0) == 0;
  const auto compare = [&](const std::string& name, const Tensor& ours) {
    report.comparisons.push_back(golden.compare(ctx, name, ours, limit_of(name, dtype, same_keys)));
  };
  compare("o", result.out);
  compare("final_state", *result.final_state);
  for (const std::string& name : {std::string("q"), std::string("k"), std::string("v")})
    compare("d_" + name, leaf_of(in[name])->gradient);
  for (const std::string& name : gates) compare("d_" + name, leaf_of(in[name])->gradient);
  compare("d_initial_state", leaf_of(in["initial_state"])->gradient);
}

}  // namespace deltron::tools
