// The steps from which both delta rules are put together on CUDA, as the entry points call them. Pieces of workspace are plain
// pointers carved by DeltaRuleCarver. Everything runs on the given stream; nothing here synchronises with the host.
#pragma once

#include "kernels/cuda/delta_rule_device.cuh"

namespace deltron::kernels::cuda {

// Hands out pieces of workspace, each aligned to 256 bytes; with no memory behind it, it only counts.
class DeltaRuleCarver {
 public:
  explicit DeltaRuleCarver(void* memory) : begin_(reinterpret_cast<std::uintptr_t>(memory)), next_((begin_ + 255) / 256 * 256) {}
  template <class T>
  T* take(std::int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += (static_cast<std::uintptr_t>(count) * sizeof(T) + 255) / 256 * 256;
    return piece;
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(next_ - begin_) + 256; }

 private:
  std::uintptr_t begin_, next_;
};

// Where outputs of forward and backward go, alike for both rules.
struct RuleOutputs {
  MutableHeadView o;
  float* final_state = nullptr;
  void* t_inverse = nullptr;
};
struct RuleGradients {
  HeadView d_o;
  const float* d_final_state = nullptr;
  MutableHeadView dq, dk, dv, d_decay, d_erase, d_write;  // d_write unused with scalar gates
  DType d_gate_dtype = DType::F32;
  float* d_A_log = nullptr;
  float* d_dt_bias = nullptr;
  float* d_initial_state = nullptr;
};

// Chunk table of the documents.
struct PlanPieces {
  std::int64_t* document_chunk;
  Chunk* chunks;
  std::int64_t count;
};
PlanPieces carve_plan(DeltaRuleCarver& carver, const RuleProblem& p);
ChunkTable make_plan(const RuleProblem& p, const PlanPieces& pieces, cudaStream_t stream);
// Shared memory that a block of the current device can have; without a device, that of a Hopper GPU.
std::int64_t shared_memory_limit();
inline constexpr std::int64_t kHopperSharedMemory = 232448;
// Sizes, offsets and grouping; throws on a fault.
void check_problem(const RuleProblem& p);

// Gradients of activated gates, fp32 [T, Hg, channels] in `d_decay` and `d_erase`, become those of what was given, in storage type;
// += gradients of A_log and dt_bias. Partial sums are ordered, fp64.
struct GatePieces {
  float* d_decay;
  float* d_erase;
  double* partial_A_log;    // [chunks, Hg, channels], raw only
  double* partial_dt_bias;  // likewise
};
GatePieces carve_gates(DeltaRuleCarver& carver, const RuleProblem& p, std::int64_t chunks);
void finish_gates(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const GatePieces& gates,
                  cudaStream_t stream);

// Any head dims and types: token by token in fp32.
struct RecurrentPieces {
  float* states;   // [chunks, Hv, K, V] at the start of chunks
  float* scratch;  // [blocks, 64, K + 1, tile]
  float* d_q;      // [tiles, T, Hv, K]
  float* d_k;      // likewise: the part through writes
  float* d_c;      // likewise: gradient of b o k
  float* d_g;      // likewise
  float* d_w;      // [tiles, T, Hv], scalar gates
};
RecurrentPieces carve_recurrent(DeltaRuleCarver& carver, const RuleProblem& p, std::int64_t chunks);
void recurrent_forward(const RuleProblem& p, const RuleOutputs& out, const ChunkTable& table, float* chunk_states,
                       cudaStream_t stream);
void recurrent_inverse(const RuleProblem& p, void* t_inverse, const ChunkTable& table, cudaStream_t stream);
void recurrent_backward(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const RecurrentPieces& pieces,
                        const GatePieces& gates, cudaStream_t stream);

}  // namespace deltron::kernels::cuda
