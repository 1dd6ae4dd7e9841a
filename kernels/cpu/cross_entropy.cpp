// Softmax cross entropy on the CPU: two passes over each row of logits forward, one backward. Masked rows read no logits.
#include "kernels/cross_entropy.h"

#include <limits>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {  // names of one family stay in its file

// log sum e^x of a row. NaN and +inf logits give NaN: both must reach the non-finite check.
template <class S>
Compute<S> log_sum_exp_row(const S* x, std::int64_t vocab) {
  using C = Compute<S>;
  const Tag<C> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<C>::infinity());
  auto top = lowest, top2 = lowest;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + 2 * lanes <= vocab; i += 2 * lanes) {
    top = hn::Max(top, load(d, x + i));
    top2 = hn::Max(top2, load(d, x + i + lanes));
  }
  for_lanes(d, vocab - i, [&](std::int64_t j, auto part) HWY_ATTR {
    auto value = load(d, x + i + j, part);
    if constexpr (std::is_same_v<decltype(part), Tail>) value = hn::IfThenElse(hn::FirstN(d, part.count), value, lowest);
    top = hn::Max(top, value);
  });
  const C maximum = max_lanes(d, hn::Max(top, top2));
  const auto shift = hn::Set(d, maximum);
  auto sum = hn::Zero(d), sum2 = sum;
  for (i = 0; i + 2 * lanes <= vocab; i += 2 * lanes) {
    sum = hn::Add(sum, exp(d, hn::Sub(load(d, x + i), shift)));
    sum2 = hn::Add(sum2, exp(d, hn::Sub(load(d, x + i + lanes), shift)));
  }
  for_lanes(d, vocab - i, [&](std::int64_t j, auto part) HWY_ATTR {
    auto value = exp(d, hn::Sub(load(d, x + i + j, part), shift));
    if constexpr (std::is_same_v<decltype(part), Tail>) value = hn::IfThenElseZero(hn::FirstN(d, part.count), value);
    sum = hn::Add(sum, value);
  });
  const C total = sum_lanes(d, hn::Add(sum, sum2));
  return maximum + hn::GetLane(log(d, hn::Set(d, total)));
}

template <class S>
void loss_rows(const CrossEntropyForwardArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  C* loss = static_cast<C*>(args.loss);
  C* log_sum_exp = static_cast<C*>(args.log_sum_exp);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int32_t label = args.labels[row];
    C value = 0, lse = 0;
    if (label != kIgnoreLabel) {
      DELTRON_CHECK(label >= 0 && label < args.vocab, "label ", label, " of row ", row, " against a vocabulary of ", args.vocab);
      const S* x = static_cast<const S*>(args.logits.data) + row * args.logits.row_stride;
      lse = log_sum_exp_row(x, args.vocab);
      value = lse - widen(x[label]);
    }
    if (loss) loss[row] = value;
    if (log_sum_exp) log_sum_exp[row] = lse;
  }
}

template <class S>
void gradient_rows(const CrossEntropyBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const Tag<C> d;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int32_t label = args.labels[row];
    S* dx = static_cast<S*>(args.dlogits.data) + row * args.dlogits.row_stride;
    if (label == kIgnoreLabel) {
      for_lanes(d, args.vocab, [&](std::int64_t i, auto part) HWY_ATTR { store(hn::Zero(d), d, dx + i, part); });
      continue;
    }
    const S* x = static_cast<const S*>(args.logits.data) + row * args.logits.row_stride;
    const C scale = static_cast<const C*>(args.dloss)[row];
    const C lse = static_cast<const C*>(args.log_sum_exp)[row];
    const C at_label = widen(x[label]);  // before dlogits, which may alias logits
    const auto shift = hn::Set(d, lse), factor = hn::Set(d, scale);
    for_lanes(d, args.vocab, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Mul(exp(d, hn::Sub(load(d, x + i, part), shift)), factor), d, dx + i, part);
    });
    const auto probability = exp(d, hn::Set(d, at_label - lse));
    dx[label] = narrow<S>((hn::GetLane(probability) - C{1}) * scale);
  }
}

void loss_all(const CrossEntropyForwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "cross_entropy", [&](auto s) {
    parallel_for(*stream.pool, args.rows, row_grain(args.vocab),
                 [&](std::int64_t begin, std::int64_t end) { loss_rows<decltype(s)>(args, begin, end); });
  });
}

void gradient_all(const CrossEntropyBackwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "cross_entropy", [&](auto s) {
    parallel_for(*stream.pool, args.rows, row_grain(args.vocab),
                 [&](std::int64_t begin, std::int64_t end) { gradient_rows<decltype(s)>(args, begin, end); });
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(loss_all);
HWY_EXPORT(gradient_all);

void cross_entropy_forward(const CrossEntropyForwardArgs& args, const StreamHandle& stream) {
  HWY_DYNAMIC_DISPATCH(loss_all)(args, stream);
}
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const StreamHandle& stream) {
  HWY_DYNAMIC_DISPATCH(gradient_all)(args, stream);
}

}  // namespace deltron::kernels::cpu
#endif
