// See rule_kernel.h.
#include "tools/verify/rule_kernel.h"

#include "kernels/gated_delta_rule.h"
#include "kernels/gated_delta_rule_2.h"
#include "src/base/build_options.h"

namespace deltron::tools {
namespace {

#if DELTRON_HAVE_CUDA
template <class Args>
Args arguments(const RuleSizes& sizes, DType dtype) {
  Args args;
  args.tokens = 1;
  args.key_heads = sizes.key_heads;
  args.value_heads = sizes.value_heads;
  args.key_dim = sizes.key_dim;
  args.value_dim = sizes.value_dim;
  args.dtype = dtype;
  args.q = args.k = {nullptr, 0, sizes.key_heads * sizes.key_dim, sizes.key_dim};
  args.v = {nullptr, 0, sizes.value_heads * sizes.value_dim, sizes.value_dim};
  args.o = {nullptr, 0, sizes.value_heads * sizes.value_dim, sizes.value_dim};
  return args;
}
#endif

}  // namespace

std::string rule_kernel_name([[maybe_unused]] Context& ctx, bool second, [[maybe_unused]] const RuleSizes& sizes,
                             [[maybe_unused]] DType dtype) {
#if DELTRON_HAVE_CUDA
  if (ctx.device() == DeviceKind::Cuda) {
    if (!second) return kernels::cuda::gated_delta_rule_kernel_name(arguments<kernels::GatedDeltaRuleForwardArgs>(sizes, dtype));
    auto args = arguments<kernels::GatedDeltaRule2ForwardArgs>(sizes, dtype);
    args.gate_heads = sizes.key_heads;
    return kernels::cuda::gated_delta_rule_2_kernel_name(args);
  }
#endif
  return second ? kernels::cpu::gated_delta_rule_2_kernel_name() : kernels::cpu::gated_delta_rule_kernel_name();
}

}  // namespace deltron::tools
