// L2 norm of heads and its gradient (kernels/l2_norm.h). A row is read whole before it is written, so that outputs may alias
// inputs.
#include "kernels/l2_norm.h"

#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/l2_norm.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <cmath>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kL2NormRows = 64;  // a part of the loop over threads

template <class S>
void l2_forward(const L2NormForwardArgs& args, ThreadPool& pool) {
  using T = Compute<S>;
  parallel_for(pool, args.rows, kL2NormRows, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const Tag<T> d;
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < args.heads; ++head) {
        const S* x = static_cast<const S*>(args.x.data) + row * args.x.token_stride + head * args.x.head_stride;
        S* y = static_cast<S*>(args.y.data) + row * args.y.token_stride + head * args.y.head_stride;
        auto sum = hn::Zero(d);
        for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR {
          const auto value = load(d, x + i, part);
          sum = hn::MulAdd(value, value, sum);
        });
        const T rstd = T(1) / std::sqrt(sum_lanes(d, sum) + static_cast<T>(args.epsilon));
        if (args.rstd != nullptr) static_cast<T*>(args.rstd)[row * args.heads + head] = rstd;
        const auto factor = hn::Set(d, rstd);
        for_lanes(d, args.dim,
                  [&](std::int64_t i, auto part) HWY_ATTR { store(hn::Mul(factor, load(d, x + i, part)), d, y + i, part); });
      }
    }
  });
}

template <class S>
void l2_backward(const L2NormBackwardArgs& args, ThreadPool& pool) {
  using T = Compute<S>;
  parallel_for(pool, args.rows, kL2NormRows, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const Tag<T> d;
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < args.heads; ++head) {
        const S* y = static_cast<const S*>(args.y.data) + row * args.y.token_stride + head * args.y.head_stride;
        const S* dy = static_cast<const S*>(args.dy.data) + row * args.dy.token_stride + head * args.dy.head_stride;
        S* dx = static_cast<S*>(args.dx.data) + row * args.dx.token_stride + head * args.dx.head_stride;
        auto sum = hn::Zero(d);
        for_lanes(d, args.dim,
                  [&](std::int64_t i, auto part) HWY_ATTR { sum = hn::MulAdd(load(d, y + i, part), load(d, dy + i, part), sum); });
        const auto along = hn::Set(d, sum_lanes(d, sum));
        const auto rstd = hn::Set(d, static_cast<const T*>(args.rstd)[row * args.heads + head]);
        for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR {
          store(hn::Mul(rstd, hn::NegMulAdd(load(d, y + i, part), along, load(d, dy + i, part))), d, dx + i, part);
        });
      }
    }
  });
}

void l2_forward_any(const L2NormForwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "l2_norm", [&](auto s) { l2_forward<decltype(s)>(args, pool); });
}
void l2_backward_any(const L2NormBackwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "l2_norm", [&](auto s) { l2_backward<decltype(s)>(args, pool); });
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(l2_forward_any);
HWY_EXPORT(l2_backward_any);

void l2_norm_forward(const L2NormForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.x.sequence_stride == 0 && args.y.sequence_stride == 0, "l2_norm takes rows of one stride");
  HWY_DYNAMIC_DISPATCH(l2_forward_any)(args, *stream.pool);
}
void l2_norm_backward(const L2NormBackwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.y.sequence_stride == 0 && args.dy.sequence_stride == 0 && args.dx.sequence_stride == 0,
                "l2_norm takes rows of one stride");
  HWY_DYNAMIC_DISPATCH(l2_backward_any)(args, *stream.pool);
}

}  // namespace deltron::kernels::cpu
#endif
