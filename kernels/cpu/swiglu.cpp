// SwiGLU on the CPU: one pass forward; one pass backward that can also write the forward's output again.
#include "kernels/swiglu.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {  // names of one family stay in its file

template <class S>
void swiglu_forward_rows(const SwigluForwardArgs& args, std::int64_t begin, std::int64_t end) {
  const Tag<Compute<S>> d;
  for (std::int64_t row = begin; row < end; ++row) {
    const S* gate = static_cast<const S*>(args.h.data) + row * args.h.row_stride;
    const S* up = gate + args.ffn;
    S* y = static_cast<S*>(args.y.data) + row * args.y.row_stride;
    for_lanes(d, args.ffn, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Mul(silu(d, load(d, gate + i, part)), load(d, up + i, part)), d, y + i, part);
    });
  }
}

template <class S, bool kOutput>
void swiglu_backward_rows(const SwigluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const Tag<Compute<S>> d;
  for (std::int64_t row = begin; row < end; ++row) {
    const S* gate = static_cast<const S*>(args.h.data) + row * args.h.row_stride;
    const S* up = gate + args.ffn;
    const S* dy = static_cast<const S*>(args.dy.data) + row * args.dy.row_stride;
    S* dgate = static_cast<S*>(args.dh.data) + row * args.dh.row_stride;
    S* dup = dgate + args.ffn;
    [[maybe_unused]] S* y = nullptr;
    if constexpr (kOutput) y = static_cast<S*>(args.y.data) + row * args.y.row_stride;
    for_lanes(d, args.ffn, [&](std::int64_t i, auto part) HWY_ATTR {
      const auto g = load(d, gate + i, part);
      const auto u = load(d, up + i, part);
      const auto slope = load(d, dy + i, part);
      const auto s = sigmoid(d, g);
      const auto activated = hn::Mul(g, s);
      if constexpr (kOutput) store(hn::Mul(activated, u), d, y + i, part);
      store(hn::Mul(hn::Mul(slope, u), silu_derivative(d, g, s)), d, dgate + i, part);
      store(hn::Mul(slope, activated), d, dup + i, part);
    });
  }
}

void swiglu_forward_all(const SwigluForwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "swiglu", [&](auto s) {
    parallel_for(*stream.pool, args.rows, row_grain(args.ffn),
                 [&](std::int64_t begin, std::int64_t end) { swiglu_forward_rows<decltype(s)>(args, begin, end); });
  });
}

void swiglu_backward_all(const SwigluBackwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "swiglu", [&](auto s) {
    using S = decltype(s);
    parallel_for(*stream.pool, args.rows, row_grain(args.ffn), [&](std::int64_t begin, std::int64_t end) {
      args.y.data ? swiglu_backward_rows<S, true>(args, begin, end) : swiglu_backward_rows<S, false>(args, begin, end);
    });
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(swiglu_forward_all);
HWY_EXPORT(swiglu_backward_all);

void swiglu_forward(const SwigluForwardArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(swiglu_forward_all)(args, stream); }
void swiglu_backward(const SwigluBackwardArgs& args, const StreamHandle& stream) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward_all)(args, stream);
}

}  // namespace deltron::kernels::cpu
#endif
