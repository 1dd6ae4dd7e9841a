// AdamW, SGD and partial norms over a table of tensors on cuda: one launch a type of state, a block of threads a chunk or a piece
// of one. Factors are formed in fp64 once a call; clipping factor and skip flag are read on the device, so the host never waits.
#include "kernels/multi_tensor.h"

#include <cmath>

#include "kernels/cuda/square_sum.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kPieces = 4;  // blocks that share a chunk in an update
constexpr int kPiece = static_cast<int>(kNormBlock) / kPieces;
constexpr int kUpdateThreads = 256;
constexpr int kGroups = 2;  // groups of 16 bytes of each tensor that a thread has under way

template <class C>
struct AdamwRule {
  static constexpr bool kMoments = true;
  C beta1, beta2, rest1, rest2, decay, rate, root, epsilon;
  template <int N>
  __device__ __forceinline__ void apply(C scale, C decays, const C (&g)[N], C (&w)[N], C (&m)[N], C (&v)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const C gradient = g[j] * scale;
      m[j] = fma(beta1, m[j], rest1 * gradient);
      v[j] = fma(beta2, v[j], rest2 * (gradient * gradient));
      w[j] = fma(-(decay * decays), w[j], w[j]);
      w[j] -= rate * m[j] / fma(sqrt(v[j]), root, epsilon);
    }
  }
};
template <class C>
struct SgdRule {
  static constexpr bool kMoments = false;
  C decay, rate;
  template <int N>
  __device__ __forceinline__ void apply(C scale, C decays, const C (&g)[N], C (&w)[N], C (&)[N], C (&)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = fma(-rate, fma(decay * decays, w[j], g[j] * scale), w[j]);
  }
};

template <class C, int N>
__device__ __forceinline__ void rewrite_weight(const C (&value)[N], void* weight, DType dtype, std::int64_t i) {
  if (weight == nullptr) return;
  if constexpr (std::is_same_v<C, double>) {
    store(value, static_cast<double*>(weight) + i);
  } else if (dtype == DType::F32) {
    store(value, static_cast<float*>(weight) + i);
  } else if (dtype == DType::BF16) {
    store(value, static_cast<bf16*>(weight) + i);
  } else {
    store(value, static_cast<fp16*>(weight) + i);
  }
}

// Elements [begin, end) of a tensor, kPerThread groups of N a thread at a time: all of them are loaded before any is used.
template <class C, class Rule, int N, int kPerThread>
__device__ __forceinline__ void update_run(const MultiTensorEntry& t, const Rule& rule, C scale, C decays, std::int64_t begin,
                                           std::int64_t end) {
  const C* grad = static_cast<const C*>(t.grad);
  C* master = static_cast<C*>(t.master);
  C* average = static_cast<C*>(t.exp_avg);
  C* square = static_cast<C*>(t.exp_avg_sq);
  for (std::int64_t at = begin + static_cast<std::int64_t>(threadIdx.x) * N; at < end; at += kUpdateThreads * N * kPerThread) {
    C g[kPerThread][N], w[kPerThread][N], m[kPerThread][N], v[kPerThread][N];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const std::int64_t i = at + k * (kUpdateThreads * N);
      if (i + N > end) continue;
      load(grad + i, g[k]);
      load(master + i, w[k]);
      if constexpr (Rule::kMoments) {
        load(average + i, m[k]);
        load(square + i, v[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const std::int64_t i = at + k * (kUpdateThreads * N);
      if (i + N > end) continue;
      rule.apply(scale, decays, g[k], w[k], m[k], v[k]);
      store(w[k], master + i);
      if constexpr (Rule::kMoments) {
        store(m[k], average + i);
        store(v[k], square + i);
      }
      rewrite_weight(w[k], t.weight, t.weight_dtype, i);
    }
  }
}

template <class C, class Rule>
__global__ void __launch_bounds__(kUpdateThreads, 4)
    update_kernel(MultiTensorTable table, Rule rule, const double* grad_scale, const std::int32_t* skip_flag) {
  constexpr int N = static_cast<int>(16 / sizeof(C));
  if (skip_flag != nullptr && *skip_flag != 0) return;
  const MultiTensorChunk chunk = table.chunks[blockIdx.x / kPieces];
  const int first = static_cast<int>(blockIdx.x) % kPieces * kPiece;
  if (first >= chunk.count) return;
  const MultiTensorEntry t = table.tensors[chunk.tensor];
  if ((t.dtype == DType::F64) != std::is_same_v<C, double>) return;
  const C scale = grad_scale == nullptr ? C(1) : static_cast<C>(*grad_scale), decays = t.decays ? C(1) : C(0);
  const std::int64_t begin = chunk.begin + first, end = begin + (chunk.count - first < kPiece ? chunk.count - first : kPiece);
  if (!t.aligned) return update_run<C, Rule, 1, kGroups>(t, rule, scale, decays, begin, end);
  const std::int64_t whole = begin + (end - begin) / N * N;
  update_run<C, Rule, N, kGroups>(t, rule, scale, decays, begin, whole);
  update_run<C, Rule, 1, 1>(t, rule, scale, decays, whole, end);
}

template <class C, class Rule>
void launch_update(const MultiTensorTable& table, const Rule& rule, const double* grad_scale, const std::int32_t* skip_flag,
                   const StreamHandle& stream, const char* what) {
  launch_kernel(what, update_kernel<C, Rule>, dim3(static_cast<unsigned>(table.chunk_count * kPieces)), dim3(kUpdateThreads),
                stream, table, rule, grad_scale, skip_flag);
}

template <class C>
AdamwRule<C> adamw_rule(const MultiTensorAdamwArgs& args) {
  const double step = static_cast<double>(args.step);
  const double correction1 = 1.0 - std::pow(args.beta1, step), correction2 = 1.0 - std::pow(args.beta2, step);
  return {static_cast<C>(args.beta1),
          static_cast<C>(args.beta2),
          static_cast<C>(1.0 - args.beta1),
          static_cast<C>(1.0 - args.beta2),
          static_cast<C>(args.lr * args.weight_decay),
          static_cast<C>(args.lr / correction1),
          static_cast<C>(1.0 / std::sqrt(correction2)),
          static_cast<C>(args.epsilon)};
}

template <class C>
__global__ void __launch_bounds__(kSquareThreads) norm_kernel(MultiTensorNormArgs a) {
  const MultiTensorChunk chunk = a.table.chunks[blockIdx.x];
  const MultiTensorEntry t = a.table.tensors[chunk.tensor];
  if ((t.dtype == DType::F64) != std::is_same_v<C, double>) return;
  square_sum(static_cast<const C*>(t.grad) + chunk.begin, chunk.count, t.aligned, a.partials + blockIdx.x,
             a.nonfinite == nullptr ? nullptr : a.nonfinite + blockIdx.x);
}

void check_table(const MultiTensorTable& table, const char* what) {
  DELTRON_CHECK_LE(table.chunk_count, std::int64_t{1} << 28, what, ": chunks of a table");
}

}  // namespace

void multi_tensor_adamw(const MultiTensorAdamwArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.step, 1, "AdamW counts its steps from 1");
  check_table(args.table, "multi_tensor_adamw");
  if (args.table.has_fp32)
    launch_update<float>(args.table, adamw_rule<float>(args), args.grad_scale, args.skip_flag, stream, "multi_tensor_adamw");
  if (args.table.has_fp64)
    launch_update<double>(args.table, adamw_rule<double>(args), args.grad_scale, args.skip_flag, stream, "multi_tensor_adamw");
}

void multi_tensor_sgd(const MultiTensorSgdArgs& args, const StreamHandle& stream) {
  check_table(args.table, "multi_tensor_sgd");
  if (args.table.has_fp32) {
    const SgdRule<float> rule{static_cast<float>(args.weight_decay), static_cast<float>(args.lr)};
    launch_update<float>(args.table, rule, args.grad_scale, args.skip_flag, stream, "multi_tensor_sgd");
  }
  if (args.table.has_fp64) {
    const SgdRule<double> rule{args.weight_decay, args.lr};
    launch_update<double>(args.table, rule, args.grad_scale, args.skip_flag, stream, "multi_tensor_sgd");
  }
}

void multi_tensor_norm(const MultiTensorNormArgs& args, const StreamHandle& stream) {
  check_table(args.table, "multi_tensor_norm");
  const dim3 grid(static_cast<unsigned>(args.table.chunk_count));
  if (args.table.has_fp32) launch_kernel("multi_tensor_norm", norm_kernel<float>, grid, dim3(kSquareThreads), stream, args);
  if (args.table.has_fp64) launch_kernel("multi_tensor_norm", norm_kernel<double>, grid, dim3(kSquareThreads), stream, args);
}

}  // namespace deltron::kernels::cuda
