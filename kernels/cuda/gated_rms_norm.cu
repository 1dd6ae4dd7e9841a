// Gated RMSNorm of the delta rule's output on cuda (docs/gdn.md (8.1)-(8.3)): the norm is rounded to the storage type before the
// gate. A row that fits into the registers of 16 threads or a warp, the usual case, is read once; other rows go by columns, twice.
#include "kernels/gated_rms_norm.h"

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/streams.cuh"

namespace deltron::kernels::cuda {
namespace {

// Where (row, head) number `index` lies: rows of one stride, or rows of sequences of a given length.
template <class Args, class View>
__device__ __forceinline__ std::int64_t place(const Args& a, const View& view, std::int64_t index) {
  const std::int64_t row = index / a.heads, head = index % a.heads, length = a.sequence_length;
  const std::int64_t start =
      length == 0 ? row * view.token_stride : row / length * view.sequence_stride + row % length * view.token_stride;
  return start + head * view.head_stride;
}

template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) forward_kernel(GatedRmsNormForwardArgs a) {
  using C = Compute<S>;
  __shared__ C shared[kRowThreads / 32];
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / kGroup) + threadIdx.x / kGroup;
  const bool mine = index < a.rows * a.heads;
  const std::int64_t dim = mine ? a.dim : 0;
  const S* x = static_cast<const S*>(a.x.data) + (mine ? place(a, a.x, index) : 0);
  const S* z = static_cast<const S*>(a.z.data) + (mine ? place(a, a.z, index) : 0);
  S* y = static_cast<S*>(a.y.data) + (mine ? place(a, a.y, index) : 0);
  C squares = 0;
  for_columns<N, kGroup>(dim, [&](std::int64_t i) {
    C value[N];
    load(x + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += value[j] * value[j];
  });
  squares = group_sum<kGroup>(squares, shared);
  const C rstd = C(1) / sqrt(squares / static_cast<C>(a.dim) + static_cast<C>(a.epsilon));
  if (mine && a.rstd != nullptr && threadIdx.x % kGroup == 0) static_cast<C*>(a.rstd)[index] = rstd;
  const C shift = a.zero_centered ? C(1) : C(0);
  for_columns<N, kGroup>(dim, [&](std::int64_t i) {
    C value[N], gate[N], weight[N];
    load(x + i, value);
    load(z + i, gate);
    load_parameter(a.weight, a.weight_dtype, i, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = round_to_storage<S>(value[j] * rstd * (weight[j] + shift)) * silu(gate[j]);
    store(value, y + i);
  });
}

// With n = x rstd, h = round(n w), t = dy silu(z):  dx = rstd (t w - n mean(t w n)),  dz = dy h silu'(z),  dw += t n.
template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads) backward_kernel(GatedRmsNormBackwardArgs a, std::int64_t strip) {
  using C = Compute<S>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ C shared[kRowThreads / 32];
  constexpr int kGroups = kRowThreads / kGroup;
  const std::int64_t rows = a.rows * a.heads, first = static_cast<std::int64_t>(blockIdx.x) * strip;
  const std::int64_t end = first + strip < rows ? first + strip : rows;
  const C shift = a.zero_centered ? C(1) : C(0);
  C* sums = reinterpret_cast<C*>(memory) + threadIdx.x / kGroup * a.dim;
  if (a.dweight != nullptr) {
    for_columns<N, kGroup>(a.dim, [&](std::int64_t i) {
#pragma unroll
      for (int j = 0; j < N; ++j) sums[i + j] = C(0);
    });
  }
  for (std::int64_t base = first; base < end; base += kGroups) {
    const std::int64_t index = base + threadIdx.x / kGroup;
    const bool mine = index < end;
    const std::int64_t dim = mine ? a.dim : 0;
    const auto at = [&](const auto& view) { return mine ? place(a, view, index) : std::int64_t{0}; };
    const S* x = static_cast<const S*>(a.x.data) + at(a.x);
    const S* z = static_cast<const S*>(a.z.data) + at(a.z);
    const S* dy = static_cast<const S*>(a.dy.data) + at(a.dy);
    S* dx = static_cast<S*>(a.dx.data) + at(a.dx);
    S* dz = static_cast<S*>(a.dz.data) + at(a.dz);
    const C rstd = mine ? static_cast<const C*>(a.rstd)[index] : C(0);
    C dot = 0;
    for_columns<N, kGroup>(dim, [&](std::int64_t i) {
      C value[N], gate[N], slope[N], weight[N];
      load(x + i, value);
      load(z + i, gate);
      load(dy + i, slope);
      load_parameter(a.weight, a.weight_dtype, i, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const C norm = value[j] * rstd;
        C gated = slope[j] * silu(gate[j]);
        if (a.round_gated) gated = round_to_storage<S>(gated);
        dot += gated * (weight[j] + shift) * norm;
        if (a.dweight != nullptr) sums[i + j] += gated * norm;
      }
    });
    const C mean = group_sum<kGroup>(dot, shared) / static_cast<C>(a.dim);
    for_columns<N, kGroup>(dim, [&](std::int64_t i) {
      C value[N], gate[N], slope[N], weight[N];
      load(x + i, value);
      load(z + i, gate);
      load(dy + i, slope);
      load_parameter(a.weight, a.weight_dtype, i, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const C norm = value[j] * rstd, scale = weight[j] + shift, s = sigmoid(gate[j]);
        const C kept = round_to_storage<S>(norm * scale);
        C gated = slope[j] * (gate[j] * s);
        if (a.round_gated) gated = round_to_storage<S>(gated);
        value[j] = rstd * (gated * scale - norm * mean);
        gate[j] = slope[j] * kept * silu_derivative(gate[j], s);
      }
      store(value, dx + i);
      store(gate, dz + i);
    });
  }
  if (a.dweight != nullptr) write_strip<kGroup>(reinterpret_cast<C*>(memory), a.dim, static_cast<C*>(a.workspace.data));
}

// By twos, kept as they are stored: few registers, many rows under way.
template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads, 6) forward_registers_kernel(GatedRmsNormForwardArgs a) {
  using C = Compute<S>;
  constexpr int kPart = 2;
  const int index = static_cast<int>(blockIdx.x) * (kRowThreads / kGroup) + static_cast<int>(threadIdx.x) / kGroup;
  const int column = static_cast<int>(threadIdx.x) % kGroup * N;
  const bool mine = index < static_cast<int>(a.rows * a.heads) && column < static_cast<int>(a.dim);
  Pack<S, N> x{}, z{};
  S* y = nullptr;
  C weight[N] = {};
  if (mine) {
    const RowPlace place(a.heads, a.sequence_length, index);
    x = read_pack<S, N>(static_cast<const S*>(a.x.data) + place.in(a.x) + column);
    z = read_pack<S, N>(static_cast<const S*>(a.z.data) + place.in(a.z) + column);
    y = static_cast<S*>(a.y.data) + place.in(a.y) + column;
    load_parameter(a.weight, a.weight_dtype, column, weight);
  }
  C squares = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const C value = widen(x.value[j]);
    squares += value * value;
  }
  squares = group_sum<kGroup, C>(squares, nullptr);
  if (!mine) return;
  const C rstd = C(1) / sqrt(squares / static_cast<C>(a.dim) + static_cast<C>(a.epsilon));
  if (a.rstd != nullptr && column == 0) static_cast<C*>(a.rstd)[index] = rstd;
  const C shift = a.zero_centered ? C(1) : C(0);
#pragma unroll
  for (int i = 0; i < N; i += kPart) {
    C value[kPart];
#pragma unroll
    for (int j = 0; j < kPart; ++j) value[j] = widen(x.value[i + j]) * rstd * (weight[i + j] + shift);
    round_values<S>(value);
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      const C gate = widen(z.value[i + j]);
      value[j] *= gate * sigmoid_for<S>(gate);
    }
    put(x, i, value);
  }
  *reinterpret_cast<Pack<S, N>*>(y) = x;
}

// As backward_kernel; a thread's columns are the same in all its rows, so that weight and its gradient's sums stay in registers.
template <class S, int N, int kGroup>
__global__ void __launch_bounds__(kRowThreads, 4) backward_registers_kernel(GatedRmsNormBackwardArgs a, int strip) {
  using C = Compute<S>;
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr int kGroups = kRowThreads / kGroup;
  const int rows = static_cast<int>(a.rows * a.heads), first = static_cast<int>(blockIdx.x) * strip;
  const int end = rows - first > strip ? first + strip : rows;
  const int group = static_cast<int>(threadIdx.x) / kGroup, column = static_cast<int>(threadIdx.x) % kGroup * N;
  const bool inside = column < static_cast<int>(a.dim);
  const C share = C(1) / static_cast<C>(a.dim);
  C scale[N] = {}, sums[N] = {};
  if (inside) {
    load_parameter(a.weight, a.weight_dtype, column, scale);
#pragma unroll
    for (int j = 0; j < N; ++j) scale[j] += a.zero_centered ? C(1) : C(0);
  }
  for (int base = first; base < end; base += kGroups) {
    const int index = base + group;
    const bool mine = index < end && inside;
    const RowPlace place(a.heads, a.sequence_length, mine ? index : first);
    C value[N] = {}, gate[N] = {}, slope[N] = {}, rstd = 0;
    if (mine) {
      const Pack<S, N> x = read_pack<S, N>(static_cast<const S*>(a.x.data) + place.in(a.x) + column);
      const Pack<S, N> z = read_pack<S, N>(static_cast<const S*>(a.z.data) + place.in(a.z) + column);
      const Pack<S, N> dy = read_pack<S, N>(static_cast<const S*>(a.dy.data) + place.in(a.dy) + column);
      rstd = static_cast<const C*>(a.rstd)[index];
      unpack(x, value);
      unpack(z, gate);
      unpack(dy, slope);
    }
    C dot = 0, kept[N], gated[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      value[j] *= rstd;  // the norm
      kept[j] = value[j] * scale[j];
      const C s = sigmoid_for<S>(gate[j]);
      gated[j] = slope[j] * (gate[j] * s);
      gate[j] = slope[j] * silu_derivative(gate[j], s);
    }
    if (a.round_gated) round_values<S>(gated);
    round_values<S>(kept);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      gate[j] *= kept[j];
      sums[j] = fma(gated[j], value[j], sums[j]);
      gated[j] *= scale[j];
      dot = fma(gated[j], value[j], dot);
    }
    const C mean = group_sum<kGroup, C>(dot, nullptr) * share;
    if (!mine) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = rstd * (gated[j] - value[j] * mean);
    write_pack(value, static_cast<S*>(a.dx.data) + place.in(a.dx) + column);
    write_pack(gate, static_cast<S*>(a.dz.data) + place.in(a.dz) + column);
  }
  if (a.dweight == nullptr) return;
  if (inside) {
    C* mine = reinterpret_cast<C*>(memory) + group * static_cast<int>(a.dim) + column;
#pragma unroll
    for (int j = 0; j < N; ++j) mine[j] = sums[j];
  }
  write_strip<kGroup>(reinterpret_cast<C*>(memory), a.dim, static_cast<C*>(a.workspace.data));
}

}  // namespace

void gated_rms_norm_forward(const GatedRmsNormForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(
      args.sequence_length > 0 || (args.x.sequence_stride == 0 && args.z.sequence_stride == 0 && args.y.sequence_stride == 0),
      "gated_rms_norm needs sequence_length beside a sequence stride");
  check_parameter(args.dtype, args.weight_dtype, "gated_rms_norm");
  const std::int64_t rows = args.rows * args.heads;
  if (rows <= 0) return;
  with_storage(args.dtype, "gated_rms_norm", [&](auto s) {
    using S = decltype(s);
    const bool aligned = heads_aligned16(args.x, args.dtype) && heads_aligned16(args.z, args.dtype) &&
                         heads_aligned16(args.y, args.dtype) && aligned16(args.weight) && args.dim % kVector<S> == 0;
    with_vector<S>(aligned, [&](auto n) {
      constexpr int kN = decltype(n)::value;
      const auto by_registers = [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        forward_registers_kernel<S, kN, kGroup>
            <<<static_cast<unsigned>(ceil_div(rows, kRowThreads / kGroup)), kRowThreads, 0, native(stream)>>>(args);
      };
      if constexpr (kN > 1) {
        if (with_rows_in_registers<kN>(args, by_registers, args.x, args.z, args.y)) return;
      }
      with_group(row_group(args.dim, kN), [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        forward_kernel<S, kN, kGroup>
            <<<static_cast<unsigned>(ceil_div(rows, kRowThreads / kGroup)), kRowThreads, 0, native(stream)>>>(args);
      });
    });
  });
  check_launch("gated_rms_norm_forward");
}

std::int64_t gated_rms_norm_backward_workspace_bytes(const GatedRmsNormBackwardArgs& args, const StreamHandle&) {
  return strip_bytes(args.rows * args.heads, args.dim, args.dtype);
}

void gated_rms_norm_backward(const GatedRmsNormBackwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(
      args.sequence_length > 0 || (args.x.sequence_stride == 0 && args.z.sequence_stride == 0 && args.dy.sequence_stride == 0 &&
                                   args.dx.sequence_stride == 0 && args.dz.sequence_stride == 0),
      "gated_rms_norm needs sequence_length beside a sequence stride");
  check_parameter(args.dtype, args.weight_dtype, "gated_rms_norm");
  const std::int64_t rows = args.rows * args.heads;
  if (rows <= 0) return;
  if (args.dweight != nullptr) {
    DELTRON_CHECK_GE(args.workspace.bytes, gated_rms_norm_backward_workspace_bytes(args, stream),
                     "workspace of gated_rms_norm_backward");
  }
  with_storage(args.dtype, "gated_rms_norm", [&](auto s) {
    using S = decltype(s);
    const bool aligned = heads_aligned16(args.x, args.dtype) && heads_aligned16(args.z, args.dtype) &&
                         heads_aligned16(args.dy, args.dtype) && heads_aligned16(args.dx, args.dtype) &&
                         heads_aligned16(args.dz, args.dtype) && aligned16(args.weight) && args.dim % kVector<S> == 0;
    with_vector<S>(aligned, [&](auto n) {
      constexpr int kN = decltype(n)::value;
      const auto by_registers = [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        const auto kernel = backward_registers_kernel<S, kN, kGroup>;
        const std::size_t shared =
            args.dweight == nullptr ? 0 : prepare_shared(kernel, args.dim, kGroup, args.dtype, "gated_rms_norm");
        kernel<<<static_cast<unsigned>(strip_count(rows)), kRowThreads, shared, native(stream)>>>(
            args, static_cast<int>(strip_rows(rows)));
      };
      if constexpr (kN > 1) {
        if (with_rows_in_registers<kN>(args, by_registers, args.x, args.z, args.dy, args.dx, args.dz)) return;
      }
      with_group(row_group(args.dim, kN), [&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        const auto kernel = backward_kernel<S, kN, kGroup>;
        const std::size_t shared =
            args.dweight == nullptr ? 0 : prepare_shared(kernel, args.dim, kGroup, args.dtype, "gated_rms_norm");
        kernel<<<static_cast<unsigned>(strip_count(rows)), kRowThreads, shared, native(stream)>>>(args, strip_rows(rows));
      });
    });
    check_launch("gated_rms_norm_backward");
    if (args.dweight != nullptr)
      add_partials<Compute<S>>(args.workspace.data, strip_count(rows), args.dim, 1, args.dweight, stream);
  });
}

}  // namespace deltron::kernels::cuda
