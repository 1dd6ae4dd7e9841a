// RMSNorm on cuda. Statistics in the compute type; the weight's gradient from partial sums of fixed strips of rows. Rows that fit
// into the registers of a warp are read once; others go by columns, twice.
#include "kernels/rms_norm.h"

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/streams.cuh"

namespace deltron::kernels::cuda {
namespace {

// Where (row, head) number `index` lies; views are packed.
template <class View>
__device__ __forceinline__ std::int64_t place(const View& view, std::int64_t index, std::int64_t heads) {
  return heads == 1 ? index * view.token_stride : index / heads * view.token_stride + index % heads * view.head_stride;
}

template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) forward_kernel(RmsNormForwardArgs a) {
  using C = Compute<S>;
  __shared__ C shared[kRowThreads / 32];
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / kGroup) + threadIdx.x / kGroup;
  const bool mine = index < a.rows * a.heads;
  const S* x = static_cast<const S*>(a.x.data) + (mine ? place(a.x, index, a.heads) : 0);
  S* y = static_cast<S*>(a.y.data) + (mine ? place(a.y, index, a.heads) : 0);
  const std::int64_t cols = mine ? a.cols : 0;
  C rstd = 0;
  if (a.use_given_rstd) {
    if (mine) rstd = static_cast<const C*>(a.rstd)[index];
  } else {
    C squares = 0;
    for_columns<N, kGroup>(cols, [&](std::int64_t i) {
      C value[N];
      load(x + i, value);
#pragma unroll
      for (int j = 0; j < N; ++j) squares += value[j] * value[j];
    });
    squares = group_sum<kGroup>(squares, shared);
    rstd = C(1) / sqrt(squares / static_cast<C>(a.cols) + static_cast<C>(a.epsilon));
    if (mine && a.rstd != nullptr && threadIdx.x % kGroup == 0) static_cast<C*>(a.rstd)[index] = rstd;
  }
  const C shift = a.zero_centered ? C(1) : C(0);
  for_columns<N, kGroup>(cols, [&](std::int64_t i) {
    C value[N], weight[N];
    load(x + i, value);
    load_parameter(a.weight, a.weight_dtype, i, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = value[j] * rstd * (weight[j] + shift);
    store(value, y + i);
  });
}

// With g = dy w, x^ = x rstd:  dx = rstd (g - x^ mean(g x^)),  dw += dy x^.
template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) backward_kernel(RmsNormBackwardArgs a, std::int64_t strip) {
  using C = Compute<S>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ C shared[kRowThreads / 32];
  constexpr int kGroups = kRowThreads / kGroup;
  const std::int64_t rows = a.rows * a.heads, first = static_cast<std::int64_t>(blockIdx.x) * strip;
  const std::int64_t end = first + strip < rows ? first + strip : rows;
  const C shift = a.zero_centered ? C(1) : C(0);
  C* sums = reinterpret_cast<C*>(memory) + threadIdx.x / kGroup * a.cols;  // each element has one owner
  if (a.dweight != nullptr) {
    for_columns<N, kGroup>(a.cols, [&](std::int64_t i) {
#pragma unroll
      for (int j = 0; j < N; ++j) sums[i + j] = C(0);
    });
  }
  for (std::int64_t base = first; base < end; base += kGroups) {
    const std::int64_t index = base + threadIdx.x / kGroup;
    const bool mine = index < end;
    const std::int64_t cols = mine ? a.cols : 0;
    const S* x = static_cast<const S*>(a.x.data) + (mine ? place(a.x, index, a.heads) : 0);
    const S* dy = static_cast<const S*>(a.dy.data) + (mine ? place(a.dy, index, a.heads) : 0);
    S* dx = static_cast<S*>(a.dx.data) + (mine ? place(a.dx, index, a.heads) : 0);
    const C rstd = mine ? static_cast<const C*>(a.rstd)[index] : C(0);
    C dot = 0;
    for_columns<N, kGroup>(cols, [&](std::int64_t i) {
      C value[N], slope[N], weight[N];
      load(x + i, value);
      load(dy + i, slope);
      load_parameter(a.weight, a.weight_dtype, i, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) dot += slope[j] * (weight[j] + shift) * value[j];
    });
    dot = group_sum<kGroup>(dot, shared);
    const C pull = dot * rstd / static_cast<C>(a.cols);
    for_columns<N, kGroup>(cols, [&](std::int64_t i) {
      C value[N], slope[N], weight[N];
      load(x + i, value);
      load(dy + i, slope);
      load_parameter(a.weight, a.weight_dtype, i, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const C unit = value[j] * rstd;
        if (a.dweight != nullptr) sums[i + j] += slope[j] * unit;
        value[j] = rstd * (slope[j] * (weight[j] + shift) - unit * pull);
      }
      store(value, dx + i);
    });
  }
  if (a.dweight != nullptr) write_strip<kGroup>(reinterpret_cast<C*>(memory), a.cols, static_cast<C*>(a.workspace.data));
}

// f(k, column) for the kChunks groups of N columns that a lane owns of a row of `cols`.
template <int N, int kChunks, class F>
__device__ __forceinline__ void for_chunks(int cols, const F& f) {
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int column = (k * 32 + static_cast<int>(threadIdx.x) % 32) * N;
    if (column < cols) f(k, column);
  }
}

template <class S, int N, int kChunks>
__global__ void __launch_bounds__(kRowThreads) forward_registers_kernel(RmsNormForwardArgs a) {
  using C = Compute<S>;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / 32) + threadIdx.x / 32;
  if (index >= a.rows * a.heads) return;  // the same for the whole warp
  const int cols = static_cast<int>(a.cols);
  const S* x = static_cast<const S*>(a.x.data) + place(a.x, index, a.heads);
  S* y = static_cast<S*>(a.y.data) + place(a.y, index, a.heads);
  Pack<S, N> kept[kChunks];
  for_chunks<N, kChunks>(cols, [&](int k, int column) { kept[k] = read_pack<S, N>(x + column); });
  C rstd = 0;
  if (a.use_given_rstd) {
    rstd = static_cast<const C*>(a.rstd)[index];
  } else {
    C squares = 0;
    for_chunks<N, kChunks>(cols, [&](int k, int) {
      C value[N];
      unpack(kept[k], value);
#pragma unroll
      for (int j = 0; j < N; ++j) squares += value[j] * value[j];
    });
    squares = group_sum<32, C>(squares, nullptr);
    rstd = C(1) / sqrt(squares / static_cast<C>(a.cols) + static_cast<C>(a.epsilon));
    if (a.rstd != nullptr && threadIdx.x % 32 == 0) static_cast<C*>(a.rstd)[index] = rstd;
  }
  const C shift = a.zero_centered ? C(1) : C(0);
  for_chunks<N, kChunks>(cols, [&](int k, int column) {
    C value[N], weight[N];
    unpack(kept[k], value);
    load_parameter(a.weight, a.weight_dtype, column, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = value[j] * rstd * (weight[j] + shift);
    write_pack(value, y + column);
  });
}

// As backward_kernel; the sums of a lane's columns stay in registers too.
template <class S, int N, int kChunks>
__global__ void __launch_bounds__(kRowThreads, 2) backward_registers_kernel(RmsNormBackwardArgs a, std::int64_t strip) {
  using C = Compute<S>;
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr int kWarps = kRowThreads / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, cols = static_cast<int>(a.cols);
  const std::int64_t rows = a.rows * a.heads, first = static_cast<std::int64_t>(blockIdx.x) * strip;
  const std::int64_t end = first + strip < rows ? first + strip : rows;
  const C shift = a.zero_centered ? C(1) : C(0);
  C sums[kChunks][N] = {};
  for (std::int64_t index = first + warp; index < end; index += kWarps) {
    const S* x = static_cast<const S*>(a.x.data) + place(a.x, index, a.heads);
    const S* dy = static_cast<const S*>(a.dy.data) + place(a.dy, index, a.heads);
    Pack<S, N> kept_x[kChunks], kept_dy[kChunks];
    for_chunks<N, kChunks>(cols, [&](int k, int column) {
      kept_x[k] = read_pack<S, N>(x + column);
      kept_dy[k] = read_pack<S, N>(dy + column);
    });
    const C rstd = static_cast<const C*>(a.rstd)[index];
    C dot = 0;
    for_chunks<N, kChunks>(cols, [&](int k, int column) {
      C value[N], slope[N], weight[N];
      unpack(kept_x[k], value);
      unpack(kept_dy[k], slope);
      load_parameter(a.weight, a.weight_dtype, column, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dot += slope[j] * (weight[j] + shift) * value[j];
        sums[k][j] += slope[j] * (value[j] * rstd);
      }
    });
    S* dx = static_cast<S*>(a.dx.data) + place(a.dx, index, a.heads);
    const C pull = group_sum<32, C>(dot, nullptr) * rstd / static_cast<C>(a.cols);
    asm volatile("" ::: "memory");  // weights are loaded again rather than kept: registers are scarce
    for_chunks<N, kChunks>(cols, [&](int k, int column) {
      C value[N], slope[N], weight[N];
      unpack(kept_x[k], value);
      unpack(kept_dy[k], slope);
      load_parameter(a.weight, a.weight_dtype, column, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] = rstd * (slope[j] * (weight[j] + shift) - value[j] * rstd * pull);
      write_pack(value, dx + column);
    });
  }
  if (a.dweight == nullptr) return;
  C* all = reinterpret_cast<C*>(memory);
  for_chunks<N, kChunks>(cols, [&](int k, int column) {
#pragma unroll
    for (int j = 0; j < N; ++j) all[warp * cols + column + j] = sums[k][j];
  });
  write_strip<32>(all, a.cols, static_cast<C*>(a.workspace.data));
}

// f(chunks) where a warp's registers hold a row of `cols`, N values a chunk, and 16 threads would not do; false where not.
template <int N, class F>
bool with_chunks(std::int64_t cols, const F& f) {
  if (cols <= 16 * N || cols > 4 * 32 * N) return false;
  if (cols <= 32 * N) {
    f(std::integral_constant<int, 1>{});
  } else if (cols <= 2 * 32 * N) {
    f(std::integral_constant<int, 2>{});
  } else {
    f(std::integral_constant<int, 4>{});
  }
  return true;
}

bool parameter_aligned(const void* weight, std::int64_t cols, int n) { return aligned16(weight) && cols % n == 0; }

}  // namespace

void rms_norm_forward(const RmsNormForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.rstd || !args.use_given_rstd, "rms_norm: use_given_rstd without rstd");
  check_parameter(args.dtype, args.weight_dtype, "rms_norm");
  const std::int64_t rows = args.rows * args.heads;
  if (rows <= 0) return;
  with_storage(args.dtype, "rms_norm", [&](auto s) {
    using S = decltype(s);
    const bool aligned = heads_aligned16(args.x, args.dtype) && heads_aligned16(args.y, args.dtype) &&
                         parameter_aligned(args.weight, args.cols, kVector<S>);
    with_vector<S>(aligned, [&](auto n) {
      constexpr int kN = decltype(n)::value;
      if constexpr (kN > 1) {
        const bool done = with_chunks<kN>(args.cols, [&](auto k) {
          forward_registers_kernel<S, kN, decltype(k)::value>
              <<<static_cast<unsigned>(ceil_div(rows, kRowThreads / 32)), kRowThreads, 0, native(stream)>>>(args);
        });
        if (done) return;
      }
      with_group(row_group(args.cols, kN), [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        forward_kernel<S, kN, kGroup>
            <<<static_cast<unsigned>(ceil_div(rows, kRowThreads / kGroup)), kRowThreads, 0, native(stream)>>>(args);
      });
    });
  });
  check_launch("rms_norm_forward");
}

std::int64_t rms_norm_backward_workspace_bytes(const RmsNormBackwardArgs& args, const StreamHandle&) {
  return strip_bytes(args.rows * args.heads, args.cols, args.dtype);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const StreamHandle& stream) {
  const std::int64_t rows = args.rows * args.heads;
  if (rows <= 0) return;
  check_parameter(args.dtype, args.weight_dtype, "rms_norm");
  if (args.dweight)
    DELTRON_CHECK_GE(args.workspace.bytes, rms_norm_backward_workspace_bytes(args, stream),
                     "rms_norm's workspace is smaller than queried");
  with_storage(args.dtype, "rms_norm", [&](auto s) {
    using S = decltype(s);
    const bool aligned = heads_aligned16(args.x, args.dtype) && heads_aligned16(args.dy, args.dtype) &&
                         heads_aligned16(args.dx, args.dtype) && parameter_aligned(args.weight, args.cols, kVector<S>);
    with_vector<S>(aligned, [&](auto n) {
      constexpr int kN = decltype(n)::value;
      if constexpr (kN > 1) {
        const bool done = with_chunks<kN>(args.cols, [&](auto k) {
          const auto kernel = backward_registers_kernel<S, kN, decltype(k)::value>;
          const std::size_t shared = args.dweight == nullptr ? 0 : prepare_shared(kernel, args.cols, 32, args.dtype, "rms_norm");
          kernel<<<static_cast<unsigned>(strip_count(rows)), kRowThreads, shared, native(stream)>>>(args, strip_rows(rows));
        });
        if (done) return;
      }
      with_group(row_group(args.cols, kN), [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        const auto kernel = backward_kernel<S, kN, kGroup>;
        const std::size_t shared = args.dweight == nullptr ? 0 : prepare_shared(kernel, args.cols, kGroup, args.dtype, "rms_norm");
        kernel<<<static_cast<unsigned>(strip_count(rows)), kRowThreads, shared, native(stream)>>>(args, strip_rows(rows));
      });
    });
    check_launch("rms_norm_backward");
    if (args.dweight != nullptr)
      add_partials<Compute<S>>(args.workspace.data, strip_count(rows), args.cols, 1, args.dweight, stream);
  });
}

}  // namespace deltron::kernels::cuda
