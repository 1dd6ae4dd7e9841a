# Sources of the delta rules on CUDA, relative to kernels/. Included only where the CUDA back end is built.
set(DELTRON_CUDA_RULE_SOURCES
  cuda/delta_rule_dispatch.cu
  cuda/delta_rule_gates.cu
  cuda/delta_rule_plan.cu
  cuda/delta_rule_recurrent.cu
  cuda/delta_rule_scan.cu
  cuda/gated_delta_rule.cu
  cuda/gated_delta_rule_2.cu
  cuda/gated_delta_rule_2_gradients.cu
  cuda/gated_delta_rule_2_prepare.cu
  cuda/gated_delta_rule_gradients.cu
  cuda/gated_delta_rule_prepare.cu
)
