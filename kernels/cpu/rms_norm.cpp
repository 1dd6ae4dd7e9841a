// RMSNorm on the CPU. Statistics in the compute type; the weight's gradient from partial sums of fixed row blocks.
#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {  // names of one family stay in its file

// Where (row, head) number `index` lies; views are packed.
template <class View>
std::int64_t offset_of(const View& view, std::int64_t index, std::int64_t heads) {
  return index / heads * view.token_stride + index % heads * view.head_stride;
}

// Sum over [0, cols) of term(i, part), in four interleaved vector sums.
template <class D, class F>
HWY_INLINE hn::TFromD<D> sum_row(D d, std::int64_t cols, const F& term) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= cols; i += 4 * lanes) {
    s0 = hn::Add(s0, term(i, Whole{}));
    s1 = hn::Add(s1, term(i + lanes, Whole{}));
    s2 = hn::Add(s2, term(i + 2 * lanes, Whole{}));
    s3 = hn::Add(s3, term(i + 3 * lanes, Whole{}));
  }
  for (; i + lanes <= cols; i += lanes) s0 = hn::Add(s0, term(i, Whole{}));
  if (i < cols) s1 = hn::Add(s1, term(i, Tail{static_cast<std::size_t>(cols - i)}));
  return sum_lanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

template <class D, class W, class Part>
HWY_INLINE hn::Vec<D> load_weight(D d, const W* weight, Part part, hn::Vec<D> shift) {
  return hn::Add(load(d, weight, part), shift);
}

template <class S, class W>
void forward_rows(const RmsNormForwardArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const Tag<C> d;
  const W* weight = static_cast<const W*>(args.weight);
  const auto shift = hn::Set(d, static_cast<C>(args.zero_centered ? 1 : 0));
  for (std::int64_t index = begin; index < end; ++index) {
    const S* x = static_cast<const S*>(args.x.data) + offset_of(args.x, index, args.heads);
    S* y = static_cast<S*>(args.y.data) + offset_of(args.y, index, args.heads);
    C* saved = args.rstd ? static_cast<C*>(args.rstd) + index : nullptr;
    C rstd;
    if (args.use_given_rstd) {
      rstd = *saved;
    } else {
      const C squares = sum_row(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR {
        const auto value = load(d, x + i, part);
        return hn::Mul(value, value);
      });
      rstd = C{1} / std::sqrt(squares / static_cast<C>(args.cols) + static_cast<C>(args.epsilon));
      if (saved) *saved = rstd;
    }
    const auto factor = hn::Set(d, rstd);
    for_lanes(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Mul(hn::Mul(load(d, x + i, part), factor), load_weight(d, weight + i, part, shift)), d, y + i, part);
    });
  }
}

void forward_all(const RmsNormForwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "rms_norm", [&](auto s) {
    using S = decltype(s);
    with_storage_of<Compute<S>>(args.weight_dtype, "rms_norm", [&](auto w) {
      parallel_for(*stream.pool, args.rows * args.heads, row_grain(args.cols),
                   [&](std::int64_t begin, std::int64_t end) { forward_rows<S, decltype(w)>(args, begin, end); });
    });
  });
}

// With g = dy w, x^ = x rstd:  dx = rstd (g - x^ mean(g x^)),  dw += dy x^.
template <class S, class W, bool kWeightGradient>
void backward_rows(const RmsNormBackwardArgs& args, std::int64_t begin, std::int64_t end, [[maybe_unused]] Compute<S>* partial) {
  using C = Compute<S>;
  const Tag<C> d;
  const W* weight = static_cast<const W*>(args.weight);
  const auto shift = hn::Set(d, static_cast<C>(args.zero_centered ? 1 : 0));
  if constexpr (kWeightGradient) {
    for_lanes(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR { store(hn::Zero(d), d, partial + i, part); });
  }
  for (std::int64_t index = begin; index < end; ++index) {
    const S* x = static_cast<const S*>(args.x.data) + offset_of(args.x, index, args.heads);
    const S* dy = static_cast<const S*>(args.dy.data) + offset_of(args.dy, index, args.heads);
    S* dx = static_cast<S*>(args.dx.data) + offset_of(args.dx, index, args.heads);
    const C rstd = static_cast<const C*>(args.rstd)[index];
    const C dot = sum_row(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR {
      return hn::Mul(hn::Mul(load(d, dy + i, part), load_weight(d, weight + i, part, shift)), load(d, x + i, part));
    });
    const auto factor = hn::Set(d, rstd);
    const auto pull = hn::Set(d, -(dot * rstd / static_cast<C>(args.cols)));  // -mean(g x^)
    for_lanes(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR {
      const auto slope = load(d, dy + i, part);
      const auto unit = hn::Mul(load(d, x + i, part), factor);
      const auto g = hn::Mul(slope, load_weight(d, weight + i, part, shift));
      if constexpr (kWeightGradient) store(hn::MulAdd(slope, unit, load(d, partial + i, part)), d, partial + i, part);
      store(hn::Mul(factor, hn::MulAdd(unit, pull, g)), d, dx + i, part);
    });
  }
}

// out += partials [count, cols] of stride partial_stride(cols), summed in ascending order first.
template <class C>
void add_partials(const C* partials, std::int64_t count, std::int64_t cols, C* out, const StreamHandle& stream) {
  parallel_for(*stream.pool, cols, 256, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const Tag<C> d;
    for_lanes(d, end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
      auto sum = load(d, partials + begin + i, part);
      for (std::int64_t p = 1; p < count; ++p) sum = hn::Add(sum, load(d, partials + p * partial_stride(cols) + begin + i, part));
      store(hn::Add(load(d, out + begin + i, part), sum), d, out + begin + i, part);
    });
  });
}

void backward_all(const RmsNormBackwardArgs& args, const StreamHandle& stream) {
  const std::int64_t rows = args.rows * args.heads;
  if (rows == 0) return;
  with_storage(args.dtype, "rms_norm", [&](auto s) {
    using S = decltype(s);
    using C = Compute<S>;
    with_storage_of<C>(args.weight_dtype, "rms_norm", [&](auto w) {
      using W = decltype(w);
      if (!args.dweight) {
        parallel_for(*stream.pool, rows, row_grain(args.cols),
                     [&](std::int64_t begin, std::int64_t end) { backward_rows<S, W, false>(args, begin, end, nullptr); });
        return;
      }
      const std::int64_t grain = partial_rows(rows, args.cols);
      C* partials = static_cast<C*>(args.workspace.data);
      parallel_for(*stream.pool, rows, grain, [&](std::int64_t begin, std::int64_t end) {
        backward_rows<S, W, true>(args, begin, end, partials + begin / grain * partial_stride(args.cols));
      });
      add_partials(partials, partial_count(rows, args.cols), args.cols, static_cast<C*>(args.dweight), stream);
    });
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(forward_all);
HWY_EXPORT(backward_all);

void rms_norm_forward(const RmsNormForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.rstd || !args.use_given_rstd, "rms_norm: use_given_rstd without rstd");
  HWY_DYNAMIC_DISPATCH(forward_all)(args, stream);
}

std::int64_t rms_norm_backward_workspace_bytes(const RmsNormBackwardArgs& args, const StreamHandle&) {
  return partial_count(args.rows * args.heads, args.cols) * partial_stride(args.cols) *
         static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void rms_norm_backward(const RmsNormBackwardArgs& args, const StreamHandle& stream) {
  if (args.dweight) {
    DELTRON_CHECK_GE(args.workspace.bytes, rms_norm_backward_workspace_bytes(args, stream),
                     "rms_norm's workspace is smaller than queried");
  }
  HWY_DYNAMIC_DISPATCH(backward_all)(args, stream);
}

}  // namespace deltron::kernels::cpu
#endif
