// Gated RMSNorm and its gradient (kernels/gated_rms_norm.h). Each element of x, z and dy is read before its place is written, so
// that outputs may alias inputs of the same layout; dweight is summed by fixed blocks of rows.
#include "kernels/gated_rms_norm.h"

#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_rms_norm.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd-inl.h"

#ifndef DELTRON_KERNELS_CPU_GATED_RMS_NORM_ONCE
#define DELTRON_KERNELS_CPU_GATED_RMS_NORM_ONCE
namespace deltron::kernels::cpu {
inline constexpr std::int64_t kGatedNormRows = 64;  // of a partial sum of dweight
}
#endif

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Offset of a row's head: rows of one stride (length 0), or `length` rows a sequence.
template <class View>
std::int64_t head_offset(const View& view, std::int64_t length, std::int64_t row, std::int64_t head) {
  const std::int64_t tokens = length == 0 ? row * view.token_stride : row / length * view.sequence_stride + row % length * view.token_stride;
  return tokens + head * view.head_stride;
}
template <class S, class Args>
const S* head_of(const Args& args, const HeadView& view, std::int64_t row, std::int64_t head) {
  return static_cast<const S*>(view.data) + head_offset(view, args.sequence_length, row, head);
}
template <class S, class Args>
S* head_of(const Args& args, const MutableHeadView& view, std::int64_t row, std::int64_t head) {
  return static_cast<S*>(view.data) + head_offset(view, args.sequence_length, row, head);
}

// What the norm is multiplied with: weight, or 1 + weight.
template <class W, class D, class P>
HWY_INLINE hn::Vec<D> multiplier(D d, const void* weight, bool zero_centered, std::int64_t i, P part) {
  const auto value = load(d, static_cast<const W*>(weight) + i, part);
  return zero_centered ? hn::Add(value, hn::Set(d, hn::TFromD<D>(1))) : value;
}

template <class S, class W>
void gated_forward(const GatedRmsNormForwardArgs& args, ThreadPool& pool) {
  using T = Compute<S>;
  parallel_for(pool, args.rows, kGatedNormRows, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const Tag<T> d;
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < args.heads; ++head) {
        const S* x = head_of<S>(args, args.x, row, head);
        const S* z = head_of<S>(args, args.z, row, head);
        S* y = head_of<S>(args, args.y, row, head);
        auto sum = hn::Zero(d);
        for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR {
          const auto value = load(d, x + i, part);
          sum = hn::MulAdd(value, value, sum);
        });
        const T rstd = T(1) / std::sqrt(sum_lanes(d, sum) / static_cast<T>(args.dim) + static_cast<T>(args.epsilon));
        if (args.rstd != nullptr) static_cast<T*>(args.rstd)[row * args.heads + head] = rstd;
        const auto factor = hn::Set(d, rstd);
        for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR {
          const auto normed =
              hn::Mul(hn::Mul(load(d, x + i, part), factor), multiplier<W>(d, args.weight, args.zero_centered, i, part));
          store(hn::Mul(round_to_storage<S>(d, normed), silu(d, load(d, z + i, part))), d, y + i, part);
        });
      }
    }
  });
}

template <class S, class W>
void gated_backward(const GatedRmsNormBackwardArgs& args, ThreadPool& pool) {
  using T = Compute<S>;
  T* partials = static_cast<T*>(args.workspace.data);  // [blocks, dim]
  parallel_for(pool, args.rows, kGatedNormRows, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const Tag<T> d;
    T* partial = partials == nullptr ? nullptr : partials + begin / kGatedNormRows * args.dim;
    if (partial != nullptr) std::fill_n(partial, args.dim, T(0));
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < args.heads; ++head) {
        const S* x = head_of<S>(args, args.x, row, head);
        const S* z = head_of<S>(args, args.z, row, head);
        const S* dy = head_of<S>(args, args.dy, row, head);
        S* dx = head_of<S>(args, args.dx, row, head);
        S* dz = head_of<S>(args, args.dz, row, head);
        const auto rstd = hn::Set(d, static_cast<const T*>(args.rstd)[row * args.heads + head]);
        auto sum = hn::Zero(d);
        for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR {
          const auto norm = hn::Mul(load(d, x + i, part), rstd);
          auto gated = hn::Mul(load(d, dy + i, part), silu(d, load(d, z + i, part)));
          if (args.round_gated) gated = round_to_storage<S>(d, gated);
          sum = hn::MulAdd(hn::Mul(gated, multiplier<W>(d, args.weight, args.zero_centered, i, part)), norm, sum);
          if (partial != nullptr) store(hn::MulAdd(gated, norm, load(d, partial + i, part)), d, partial + i, part);
        });
        const auto mean = hn::Set(d, sum_lanes(d, sum) / static_cast<T>(args.dim));
        for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR {
          const auto norm = hn::Mul(load(d, x + i, part), rstd);
          const auto gate = load(d, z + i, part);
          const auto sigma = sigmoid(d, gate);
          const auto gradient = load(d, dy + i, part);
          const auto weight = multiplier<W>(d, args.weight, args.zero_centered, i, part);
          auto gated = hn::Mul(gradient, hn::Mul(gate, sigma));
          if (args.round_gated) gated = round_to_storage<S>(d, gated);
          const auto d_norm = hn::Mul(gated, weight);
          const auto kept = round_to_storage<S>(d, hn::Mul(norm, weight));
          store(hn::Mul(rstd, hn::NegMulAdd(norm, mean, d_norm)), d, dx + i, part);
          store(hn::Mul(hn::Mul(gradient, kept), silu_derivative(d, gate, sigma)), d, dz + i, part);
        });
      }
    }
  });
  if (args.dweight == nullptr) return;
  T* dweight = static_cast<T*>(args.dweight);
  const std::int64_t blocks = (args.rows + kGatedNormRows - 1) / kGatedNormRows;
  for (std::int64_t i = 0; i < args.dim; ++i) {
    T sum = 0;
    for (std::int64_t block = 0; block < blocks; ++block) sum += partials[block * args.dim + i];
    dweight[i] += sum;
  }
}

void gated_forward_any(const GatedRmsNormForwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "gated_rms_norm", [&](auto s) {
    using S = decltype(s);
    with_storage_of<Compute<S>>(args.weight_dtype, "gated_rms_norm", [&](auto w) { gated_forward<S, decltype(w)>(args, pool); });
  });
}
void gated_backward_any(const GatedRmsNormBackwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "gated_rms_norm", [&](auto s) {
    using S = decltype(s);
    with_storage_of<Compute<S>>(args.weight_dtype, "gated_rms_norm", [&](auto w) { gated_backward<S, decltype(w)>(args, pool); });
  });
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(gated_forward_any);
HWY_EXPORT(gated_backward_any);

void gated_rms_norm_forward(const GatedRmsNormForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.sequence_length > 0 || (args.x.sequence_stride == 0 && args.z.sequence_stride == 0 && args.y.sequence_stride == 0),
                "gated_rms_norm needs sequence_length beside a sequence stride");
  HWY_DYNAMIC_DISPATCH(gated_forward_any)(args, *stream.pool);
}

std::int64_t gated_rms_norm_backward_workspace_bytes(const GatedRmsNormBackwardArgs& args, const StreamHandle&) {
  if (args.dweight == nullptr) return 0;
  return (args.rows + kGatedNormRows - 1) / kGatedNormRows * args.dim *
         static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void gated_rms_norm_backward(const GatedRmsNormBackwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.sequence_length > 0 || (args.x.sequence_stride == 0 && args.z.sequence_stride == 0 && args.dy.sequence_stride == 0 &&
                                             args.dx.sequence_stride == 0 && args.dz.sequence_stride == 0),
                "gated_rms_norm needs sequence_length beside a sequence stride");
  DELTRON_CHECK_GE(args.workspace.bytes, gated_rms_norm_backward_workspace_bytes(args, stream),
                   "workspace of gated_rms_norm_backward");
  GatedRmsNormBackwardArgs checked = args;
  if (args.dweight == nullptr) checked.workspace.data = nullptr;
  HWY_DYNAMIC_DISPATCH(gated_backward_any)(checked, *stream.pool);
}

}  // namespace deltron::kernels::cpu
#endif
