// L2 norm of heads and its gradient on cuda (docs/gdn.md (4.3), (4.4)). A thread reads what it writes before it writes, so that
// outputs may alias inputs. Rows that fit into the registers of 16 threads or a warp are read once.
#include "kernels/l2_norm.h"

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/streams.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kRowsAtOnce = 2;  // rows of a group that are loaded together

template <class View>
__device__ __forceinline__ std::int64_t place(const View& view, std::int64_t index, std::int64_t heads) {
  return index / heads * view.token_stride + index % heads * view.head_stride;
}

template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) forward_kernel(L2NormForwardArgs a) {
  using C = Compute<S>;
  __shared__ C shared[kRowThreads / 32];
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / kGroup) + threadIdx.x / kGroup;
  const bool mine = index < a.rows * a.heads;
  const std::int64_t dim = mine ? a.dim : 0;
  const S* x = static_cast<const S*>(a.x.data) + (mine ? place(a.x, index, a.heads) : 0);
  S* y = static_cast<S*>(a.y.data) + (mine ? place(a.y, index, a.heads) : 0);
  C squares = 0;
  for_columns<N, kGroup>(dim, [&](std::int64_t i) {
    C value[N];
    load(x + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += value[j] * value[j];
  });
  const C rstd = C(1) / sqrt(group_sum<kGroup>(squares, shared) + static_cast<C>(a.epsilon));
  if (mine && a.rstd != nullptr && threadIdx.x % kGroup == 0) static_cast<C*>(a.rstd)[index] = rstd;
  for_columns<N, kGroup>(dim, [&](std::int64_t i) {
    C value[N];
    load(x + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] *= rstd;
    store(value, y + i);
  });
}

template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) backward_kernel(L2NormBackwardArgs a) {
  using C = Compute<S>;
  __shared__ C shared[kRowThreads / 32];
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / kGroup) + threadIdx.x / kGroup;
  const bool mine = index < a.rows * a.heads;
  const std::int64_t dim = mine ? a.dim : 0;
  const S* y = static_cast<const S*>(a.y.data) + (mine ? place(a.y, index, a.heads) : 0);
  const S* dy = static_cast<const S*>(a.dy.data) + (mine ? place(a.dy, index, a.heads) : 0);
  S* dx = static_cast<S*>(a.dx.data) + (mine ? place(a.dx, index, a.heads) : 0);
  C along = 0;
  for_columns<N, kGroup>(dim, [&](std::int64_t i) {
    C unit[N], slope[N];
    load(y + i, unit);
    load(dy + i, slope);
#pragma unroll
    for (int j = 0; j < N; ++j) along += unit[j] * slope[j];
  });
  along = group_sum<kGroup>(along, shared);
  const C rstd = mine ? static_cast<const C*>(a.rstd)[index] : C(0);
  for_columns<N, kGroup>(dim, [&](std::int64_t i) {
    C unit[N], slope[N];
    load(y + i, unit);
    load(dy + i, slope);
#pragma unroll
    for (int j = 0; j < N; ++j) slope[j] = rstd * (slope[j] - unit[j] * along);
    store(slope, dx + i);
  });
}

template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) forward_registers_kernel(L2NormForwardArgs a) {
  using C = Compute<S>;
  constexpr int kGroups = kRowThreads / kGroup;
  const int rows = static_cast<int>(a.rows * a.heads), column = static_cast<int>(threadIdx.x) % kGroup * N;
  const int first = static_cast<int>(blockIdx.x) * kRowsAtOnce * kGroups + static_cast<int>(threadIdx.x) / kGroup;
  const bool inside = column < static_cast<int>(a.dim);
  Pack<S, N> x[kRowsAtOnce];
  std::int64_t to[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const int index = first + r * kGroups;
    x[r] = Pack<S, N>{};
    if (index >= rows || !inside) continue;
    const RowPlace place(a.heads, 0, index);
    x[r] = read_pack<S, N>(static_cast<const S*>(a.x.data) + place.in(a.x) + column);
    to[r] = place.in(a.y) + column;
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const int index = first + r * kGroups;
    C value[N], squares = 0;
    unpack(x[r], value);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += value[j] * value[j];
    squares = group_sum<kGroup, C>(squares, nullptr);
    if (index >= rows || !inside) continue;
    const C rstd = C(1) / sqrt(squares + static_cast<C>(a.epsilon));
    if (a.rstd != nullptr && column == 0) static_cast<C*>(a.rstd)[index] = rstd;
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] *= rstd;
    write_pack(value, static_cast<S*>(a.y.data) + to[r]);
  }
}

template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) backward_registers_kernel(L2NormBackwardArgs a) {
  using C = Compute<S>;
  constexpr int kGroups = kRowThreads / kGroup;
  const int rows = static_cast<int>(a.rows * a.heads), column = static_cast<int>(threadIdx.x) % kGroup * N;
  const int first = static_cast<int>(blockIdx.x) * kRowsAtOnce * kGroups + static_cast<int>(threadIdx.x) / kGroup;
  const bool inside = column < static_cast<int>(a.dim);
  Pack<S, N> y[kRowsAtOnce], dy[kRowsAtOnce];
  C rstd[kRowsAtOnce];
  std::int64_t to[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const int index = first + r * kGroups;
    y[r] = dy[r] = Pack<S, N>{};
    if (index >= rows || !inside) continue;
    const RowPlace place(a.heads, 0, index);
    y[r] = read_pack<S, N>(static_cast<const S*>(a.y.data) + place.in(a.y) + column);
    dy[r] = read_pack<S, N>(static_cast<const S*>(a.dy.data) + place.in(a.dy) + column);
    rstd[r] = static_cast<const C*>(a.rstd)[index];
    to[r] = place.in(a.dx) + column;
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    C unit[N], slope[N], along = 0;
    unpack(y[r], unit);
    unpack(dy[r], slope);
#pragma unroll
    for (int j = 0; j < N; ++j) along += unit[j] * slope[j];
    along = group_sum<kGroup, C>(along, nullptr);
    if (first + r * kGroups >= rows || !inside) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) slope[j] = rstd[r] * (slope[j] - unit[j] * along);
    write_pack(slope, static_cast<S*>(a.dx.data) + to[r]);
  }
}

}  // namespace

void l2_norm_forward(const L2NormForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.x.sequence_stride == 0 && args.y.sequence_stride == 0, "l2_norm takes rows of one stride");
  const std::int64_t rows = args.rows * args.heads;
  if (rows <= 0) return;
  with_storage(args.dtype, "l2_norm", [&](auto s) {
    using S = decltype(s);
    const bool aligned = heads_aligned16(args.x, args.dtype) && heads_aligned16(args.y, args.dtype) && args.dim % kVector<S> == 0;
    with_vector<S>(aligned, [&](auto n) {
      constexpr int kN = decltype(n)::value;
      const auto by_registers = [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        forward_registers_kernel<S, kN, kGroup>
            <<<static_cast<unsigned>(ceil_div(rows, kRowsAtOnce * kRowThreads / kGroup)), kRowThreads, 0, native(stream)>>>(args);
      };
      if constexpr (kN > 1) {
        if (with_rows_in_registers<kN>(args, by_registers, args.x, args.y)) return;
      }
      with_group(row_group(args.dim, kN), [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        forward_kernel<S, kN, kGroup>
            <<<static_cast<unsigned>(ceil_div(rows, kRowThreads / kGroup)), kRowThreads, 0, native(stream)>>>(args);
      });
    });
  });
  check_launch("l2_norm_forward");
}

void l2_norm_backward(const L2NormBackwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.y.sequence_stride == 0 && args.dy.sequence_stride == 0 && args.dx.sequence_stride == 0,
                "l2_norm takes rows of one stride");
  const std::int64_t rows = args.rows * args.heads;
  if (rows <= 0) return;
  with_storage(args.dtype, "l2_norm", [&](auto s) {
    using S = decltype(s);
    const bool aligned = heads_aligned16(args.y, args.dtype) && heads_aligned16(args.dy, args.dtype) &&
                         heads_aligned16(args.dx, args.dtype) && args.dim % kVector<S> == 0;
    with_vector<S>(aligned, [&](auto n) {
      constexpr int kN = decltype(n)::value;
      const auto by_registers = [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        backward_registers_kernel<S, kN, kGroup>
            <<<static_cast<unsigned>(ceil_div(rows, kRowsAtOnce * kRowThreads / kGroup)), kRowThreads, 0, native(stream)>>>(args);
      };
      if constexpr (kN > 1) {
        if (with_rows_in_registers<kN>(args, by_registers, args.y, args.dy, args.dx)) return;
      }
      with_group(row_group(args.dim, kN), [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        backward_kernel<S, kN, kGroup>
            <<<static_cast<unsigned>(ceil_div(rows, kRowThreads / kGroup)), kRowThreads, 0, native(stream)>>>(args);
      });
    });
  });
  check_launch("l2_norm_backward");
}

}  // namespace deltron::kernels::cuda
