// See checks.h: the gated delta rule alone.
#include <memory>

#include "kernels/gated_delta_rule.h"
#include "src/autograd/engine.h"
#include "src/autograd/functions_gdn.h"
#include "src/base/file.h"
#include "tools/verify/checks.h"
#include "tools/verify/golden.h"

namespace deltron::tools {
namespace {

// README of the golden files; identical keys with beta 2 amplify rounding.
double limit_of(const std::string& name, DType dtype, bool same_keys) {
  if (dtype == DType::F32) return name == "d_g" ? 1e-4 : 1e-5;
  if (same_keys) return 0.020;
  if (name == "o" || name == "final_state") return 0.006;
  if (name == "d_beta" || name == "d_g") return 0.015;
  return 0.010;
}

}  // namespace

void check_op(Context& ctx, const std::string& path, DType dtype, FileReport& report) {
  const GoldenFile golden(path);
  golden.require_names({"q", "k", "v", "g", "beta", "initial_state", "cu_seqlens", "d_o", "d_final_state", "o", "final_state",
                        "d_q", "d_k", "d_v", "d_g", "d_beta", "d_initial_state"});
  if (golden.text("layout") != "thd") golden_error(path, "layout is not supported", golden.text("layout"), "thd");
  const std::vector<std::int64_t> keys = golden.shape("k", 3), values = golden.shape("v", 3);
  GatedDeltaRuleOptions options;
  options.key_heads = keys[1];
  options.key_dim = keys[2];
  options.value_heads = values[1];
  options.value_dim = values[2];
  options.use_qk_l2norm = golden.flag("use_qk_l2norm");
  options.scale = golden.number("scale");
  options.output_final_state = true;
  const auto layout = std::make_shared<const SequenceLayout>(ctx, golden.integers("cu_seqlens"), keys[0]);

  const auto leaf = [&](const char* name, DType as) { return make_leaf(golden.tensor(ctx, name, as), name); };
  GatedDeltaRuleInputs inputs;
  inputs.q = leaf("q", dtype);
  inputs.k = leaf("k", dtype);
  inputs.v = leaf("v", dtype);
  inputs.decay = leaf("g", DType::F32);  // log decays and states are fp32 whatever the operands are
  inputs.beta = leaf("beta", dtype);
  inputs.initial_state = leaf("initial_state", DType::F32);
  const GatedDeltaRuleResult result = gated_delta_rule(ctx, inputs, layout, options, "verify");
  const Tensor d_o = golden.tensor(ctx, "d_o", dtype), d_final_state = golden.tensor(ctx, "d_final_state", DType::F32);
  if (d_o.count() != result.out.count() || d_final_state.shape() != result.final_state->shape()) {
    golden_error(path, "incoming gradients do not have the shapes of the results",
                 shape_text(d_o.shape()) + ", " + shape_text(d_final_state.shape()));
  }
  backward(ctx, {result.out, *result.final_state}, {d_o.view(result.out.shape()), d_final_state});

  report.kind = "op";
  report.dtype = dtype_name(dtype);
  report.kernel = kernels::cpu::gated_delta_rule_kernel_name();
  const bool same_keys = base_name(path).rfind("op_gdn_beta2_same_keys", 0) == 0;
  const auto compare = [&](const char* name, const Tensor& ours) {
    report.comparisons.push_back(golden.compare(ctx, name, ours, limit_of(name, dtype, same_keys)));
  };
  compare("o", result.out);
  compare("final_state", *result.final_state);
  compare("d_q", leaf_of(inputs.q)->gradient);
  compare("d_k", leaf_of(inputs.k)->gradient);
  compare("d_v", leaf_of(inputs.v)->gradient);
  compare("d_g", leaf_of(inputs.decay)->gradient);
  compare("d_beta", leaf_of(inputs.beta)->gradient);
  compare("d_initial_state", leaf_of(inputs.initial_state)->gradient);
}

}  // namespace deltron::tools
