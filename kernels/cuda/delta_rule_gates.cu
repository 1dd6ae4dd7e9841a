// Last step of backward for both delta rules: gradients of activated gates become those of the values that were given, docs/gdn.md
// (3.3)-(3.5), (12.9); sums for A_log and dt_bias in fp64, in an order that depends on the sizes alone.
#include "kernels/cuda/delta_rule_launch.h"

namespace deltron::kernels::cuda {
namespace {

// A thread takes kTokens tokens of one (chunk, gate head, channel).
template <int kTokens>
__global__ void __launch_bounds__(128) gate_gradients(RuleProblem p, RuleGradients out, ChunkTable table, GatePieces gates) {
  constexpr int kParts = kChunk / kTokens;
  const std::int64_t channels = p.gate_channels(), width = p.gate_heads * channels;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= table.count * kParts * width) return;
  const std::int64_t column = item % width;
  const Chunk chunk = table.chunks[item / width / kParts];
  const int begin = static_cast<int>(item / width % kParts) * kTokens,
            end = begin + kTokens < chunk.tokens ? begin + kTokens : chunk.tokens;
  const int head = static_cast<int>(column / channels), channel = static_cast<int>(column % channels);
  const std::int64_t first = p.documents.cu_seqlens[chunk.document] + chunk.begin;
  const std::int64_t decay_at = view_offset(p.decay, p.documents, chunk.document, chunk.begin, head) + channel;
  const std::int64_t erase_at = view_offset(p.erase, p.documents, chunk.document, chunk.begin, head) + channel;
  const std::int64_t d_decay_at = view_offset(out.d_decay, p.documents, chunk.document, chunk.begin, head) + channel;
  const std::int64_t d_erase_at = view_offset(out.d_erase, p.documents, chunk.document, chunk.begin, head) + channel;
  const float rate = p.raw ? expf(p.A_log[head]) : 0, bias = p.raw ? p.dt_bias[column] : 0;
  double sum_A_log = 0, sum_bias = 0;
#pragma unroll 4
  for (int t = begin; t < end; ++t) {
    float d_g = gates.d_decay[(first + t) * width + column], d_b = gates.d_erase[(first + t) * width + column];
    if (p.raw) {
      const float x = load_element(p.decay.data, p.decay_dtype, decay_at + t * p.decay.token_stride) + bias;
      const float g = fmaxf(-rate * softplus(x), kLogDecayFloor);
      sum_A_log += static_cast<double>(d_g) * static_cast<double>(g);
      d_g *= -rate * (x > 20 ? 1.0f : sigmoid(x));
      sum_bias += static_cast<double>(d_g);
      const float s = sigmoid(load_element(p.erase.data, p.erase_dtype, erase_at + t * p.erase.token_stride));
      d_b *= (p.allow_neg_eigval ? 2.0f : 1.0f) * s * (1 - s);
    }
    store_element(out.d_decay.data, out.d_gate_dtype, d_decay_at + t * out.d_decay.token_stride, d_g);
    store_element(out.d_erase.data, out.d_gate_dtype, d_erase_at + t * out.d_erase.token_stride, d_b);
  }
  if (p.raw) gates.partial_A_log[item] = sum_A_log, gates.partial_dt_bias[item] = sum_bias;
}

// A block sums one column of one gate head over all chunks (and, for A_log, all channels): strided parts, then a fixed tree.
__global__ void __launch_bounds__(256)
    gate_parameter_gradients(RuleProblem p, std::int64_t parts, GatePieces gates, float* d_A_log, float* d_dt_bias) {
  __shared__ double sums[256];
  const int thread = static_cast<int>(threadIdx.x), channels = p.gate_channels();
  const std::int64_t width = static_cast<std::int64_t>(p.gate_heads) * channels, block = blockIdx.x;
  const bool bias = block < width;
  double sum = 0;
  if (bias) {
#pragma unroll 8
    for (std::int64_t c = thread; c < parts; c += 256) sum += gates.partial_dt_bias[c * width + block];
  } else {
    const std::int64_t head = block - width;
    const int lanes = channels < 256 ? channels : 256, steps = 256 / lanes;  // threads past lanes * steps have nothing
    for (int channel = thread % lanes; channel < channels && thread < lanes * steps; channel += lanes) {
      const double* column = gates.partial_A_log + head * channels + channel;
#pragma unroll 8
      for (std::int64_t c = thread / lanes; c < parts; c += steps) sum += column[c * width];
    }
  }
  sums[thread] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  if (thread != 0) return;
  if (bias && d_dt_bias != nullptr) d_dt_bias[block] += static_cast<float>(sums[0]);
  if (!bias && d_A_log != nullptr) d_A_log[block - width] += static_cast<float>(sums[0]);
}

}  // namespace

// The first rule has few columns: more threads of fewer tokens.
constexpr int kFewTokens = 4, kManyTokens = 16;
std::int64_t parts_of_chunk(const RuleProblem& p) { return kChunk / (p.scalar_gates ? kFewTokens : kManyTokens); }

GatePieces carve_gates(DeltaRuleCarver& carver, const RuleProblem& p, std::int64_t chunks) {
  const std::int64_t width = static_cast<std::int64_t>(p.gate_heads) * p.gate_channels();
  GatePieces pieces{};
  pieces.d_decay = carver.take<float>(p.tokens * width);
  pieces.d_erase = carver.take<float>(p.tokens * width);
  if (p.raw) {
    pieces.partial_A_log = carver.take<double>(chunks * parts_of_chunk(p) * width);
    pieces.partial_dt_bias = carver.take<double>(chunks * parts_of_chunk(p) * width);
  }
  return pieces;
}

void finish_gates(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const GatePieces& gates,
                  cudaStream_t stream) {
  const std::int64_t width = static_cast<std::int64_t>(p.gate_heads) * p.gate_channels();
  const std::int64_t parts = table.count * parts_of_chunk(p);
  if (p.scalar_gates) {
    launch("delta_rule_gate_gradients", &gate_gradients<kFewTokens>, (parts * width + 127) / 128, 128, 0, stream, p, out, table,
           gates);
  } else {
    launch("delta_rule_gate_gradients", &gate_gradients<kManyTokens>, (parts * width + 127) / 128, 128, 0, stream, p, out, table,
           gates);
  }
  if (!p.raw || (out.d_A_log == nullptr && out.d_dt_bias == nullptr)) return;
  launch("delta_rule_gate_parameters", &gate_parameter_gradients, width + p.gate_heads, 256, 0, stream, p, parts, gates,
         out.d_A_log, out.d_dt_bias);
}

}  // namespace deltron::kernels::cuda
