// Which kernels serve a delta-rule problem on CUDA, and the order of their launches. Knows no arithmetic.
#include "kernels/cuda/delta_rule_problem.h"

namespace deltron::kernels::cuda {

bool tensor_core_forward(const RuleProblem&, const MutableHeadView&) { return false; }
bool tensor_core_backward(const RuleProblem&, const RuleGradients&) { return false; }

const char* kernel_name(const RuleProblem& p, bool) {
  if (p.dtype == DType::BF16) return "cuda.recurrent.bf16";
  return p.dtype == DType::F16 ? "cuda.recurrent.fp16" : "cuda.recurrent.fp32";
}

std::int64_t run_forward(const RuleProblem& p, const RuleOutputs& out, void* memory, cudaStream_t stream) {
  check_problem(p);
  DeltaRuleCarver carver(memory);
  const PlanPieces plan = carve_plan(carver, p);
  if (memory == nullptr) return carver.bytes();
  const ChunkTable table = make_plan(p, plan, stream);
  recurrent_forward(p, out, table, nullptr, stream);
  if (out.t_inverse != nullptr) recurrent_inverse(p, out.t_inverse, table, stream);
  return carver.bytes();
}

std::int64_t run_backward(const RuleProblem& p, const RuleGradients& out, void* memory, cudaStream_t stream) {
  check_problem(p);
  DeltaRuleCarver carver(memory);
  const PlanPieces plan = carve_plan(carver, p);
  const GatePieces gates = carve_gates(carver, p, plan.count);
  const RecurrentPieces pieces = carve_recurrent(carver, p, plan.count);
  if (memory == nullptr) return carver.bytes();
  const ChunkTable table = make_plan(p, plan, stream);
  recurrent_backward(p, out, table, pieces, gates, stream);
  finish_gates(p, out, table, gates, stream);
  return carver.bytes();
}

}  // namespace deltron::kernels::cuda
