// Which kernels serve a delta-rule problem on CUDA, and the order of their launches. Knows no arithmetic.
#include <string>

#include "kernels/cuda/delta_rule_problem.h"
#include "kernels/cuda/delta_rule_records.cuh"

namespace deltron::kernels::cuda {
namespace {

// Rows of 16-byte pieces, as the asynchronous copies and vector stores need them.
template <class View>
bool aligned(const View& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.sequence_stride % 8 == 0 && view.token_stride % 8 == 0 &&
         view.head_stride % 8 == 0;
}
bool tensor_core_inputs(const RuleProblem& p) {
  const auto fast = [](int dim) { return dim == 64 || dim == 128; };
  if (shared_memory_limit() < kHopperSharedMemory) return false;  // tiles are cut for Hopper and larger
  return (p.dtype == DType::BF16 || p.dtype == DType::F16) && fast(p.key_dim) && fast(p.value_dim) && aligned(p.q) &&
         aligned(p.k) && aligned(p.v) && (p.scalar_gates || aligned(p.write));
}

}  // namespace

bool tensor_core_forward(const RuleProblem& p, const MutableHeadView& o) { return tensor_core_inputs(p) && aligned(o); }
bool tensor_core_backward(const RuleProblem& p, const RuleGradients& out) {
  return tensor_core_inputs(p) && aligned(out.d_o) && aligned(out.dq) && aligned(out.dk) && aligned(out.dv) &&
         (p.scalar_gates || aligned(out.d_write));
}

const char* kernel_name(const RuleProblem& p, bool tensor_cores) {
  if (!tensor_cores) {
    if (p.dtype == DType::BF16) return "cuda.recurrent.bf16";
    return p.dtype == DType::F16 ? "cuda.recurrent.fp16" : "cuda.recurrent.fp32";
  }
  static constexpr const char* kNames[2][2][2] = {{{"cuda.chunked64.mma.bf16.k64.v64", "cuda.chunked64.mma.bf16.k64.v128"},
                                                   {"cuda.chunked64.mma.bf16.k128.v64", "cuda.chunked64.mma.bf16.k128.v128"}},
                                                  {{"cuda.chunked64.mma.fp16.k64.v64", "cuda.chunked64.mma.fp16.k64.v128"},
                                                   {"cuda.chunked64.mma.fp16.k128.v64", "cuda.chunked64.mma.fp16.k128.v128"}}};
  return kNames[p.dtype == DType::F16][p.key_dim == 128][p.value_dim == 128];
}

TensorPieces carve_tensor(DeltaRuleCarver& carver, const RuleProblem& p, std::int64_t chunks, bool backward) {
  const std::int64_t gates = chunks * p.gate_heads, values = chunks * p.value_heads, K = p.key_dim, V = p.value_dim;
  TensorPieces pieces{};
  pieces.t = carver.take<std::uint16_t>(gates * kChunk * kChunk);
  pieces.p = carver.take<std::uint16_t>(gates * kChunk * kChunk);
  if (p.scalar_gates) {
    pieces.factors = carver.take<float>(values * kFactors * kChunk);
  } else {
    for (void** tile : {&pieces.erased_start, &pieces.query_start, &pieces.key_end})
      *tile = carver.take<std::uint16_t>(gates * kChunk * K);
    pieces.whole = carver.take<float>(gates * K);
    pieces.decay = carver.take<float>(gates * kChunk * K);
    pieces.erase = carver.take<std::uint16_t>(gates * kChunk * K);
  }
  if (!backward) return pieces;
  for (void** tile : {&pieces.states, &pieces.d_states}) *tile = carver.take<std::uint16_t>(values * K * V);
  pieces.t_rest = carver.take<std::uint16_t>(gates * kChunk * kChunk);
  if (p.scalar_gates) pieces.y = carver.take<std::uint16_t>(values * kChunk * V);
  if (p.gate_heads > p.key_heads && !p.scalar_gates) {
    for (float** sums : {&pieces.d_q, &pieces.d_k}) *sums = carver.take<float>(p.tokens * p.key_heads * K);
  }
  for (void** tile : {&pieces.u, &pieces.z}) *tile = carver.take<std::uint16_t>(values * kChunk * V);
  return pieces;
}

std::int64_t run_forward(const RuleProblem& p, const RuleOutputs& out, void* memory, cudaStream_t stream) {
  check_problem(p);
  const bool tensor_cores = tensor_core_forward(p, out.o);
  DeltaRuleCarver carver(memory);
  const PlanPieces plan = carve_plan(carver, p);
  const TensorPieces pieces = tensor_cores ? carve_tensor(carver, p, plan.count, false) : TensorPieces{};
  if (memory == nullptr) return carver.bytes();
  const ChunkTable table = make_plan(p, plan, stream);
  if (!tensor_cores) {
    recurrent_forward(p, out, table, nullptr, stream);
    if (out.t_inverse != nullptr) recurrent_inverse(p, out.t_inverse, table, stream);
    return carver.bytes();
  }
  if (p.scalar_gates) {
    prepare_scalar(p, out.t_inverse, table, pieces, stream);
  } else {
    prepare_channel(p, table, pieces, stream);
  }
  scan_forward(p, out, table, pieces, false, stream);
  return carver.bytes();
}

std::int64_t run_backward(const RuleProblem& p, const RuleGradients& out, void* memory, cudaStream_t stream) {
  check_problem(p);
  const bool tensor_cores = tensor_core_backward(p, out);
  DeltaRuleCarver carver(memory);
  const PlanPieces plan = carve_plan(carver, p);
  const GatePieces gates = carve_gates(carver, p, plan.count);
  const TensorPieces tensor = tensor_cores ? carve_tensor(carver, p, plan.count, true) : TensorPieces{};
  const RecurrentPieces recurrent = tensor_cores ? RecurrentPieces{} : carve_recurrent(carver, p, plan.count);
  if (memory == nullptr) return carver.bytes();
  const ChunkTable table = make_plan(p, plan, stream);
  if (!tensor_cores) {
    recurrent_backward(p, out, table, recurrent, gates, stream);
  } else {
    if (p.scalar_gates) {
      prepare_scalar(p, nullptr, table, tensor, stream);
    } else {
      prepare_channel(p, table, tensor, stream);
    }
    scan_forward(p, RuleOutputs{}, table, tensor, true, stream);
    scan_backward(p, out, table, tensor, stream);
    if (p.scalar_gates) {
      gradients_scalar(p, out, table, tensor, gates, stream);
    } else {
      gradients_channel(p, out, table, tensor, gates, stream);
    }
  }
  finish_gates(p, out, table, gates, stream);
  return carver.bytes();
}

}  // namespace deltron::kernels::cuda
