// Softmax cross entropy on the CPU: two passes over each row of logits forward, one backward. Masked rows read no logits.
#include "kernels/cross_entropy.h"

#include <algorithm>
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
  C* label_logit = static_cast<C*>(args.label_logit);
  const std::int64_t all = args.whole > 0 ? args.whole : args.vocab;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int32_t label = args.labels[row];
    C at_label = 0, lse = 0;
    if (label != kIgnoreLabel) {
      DELTRON_CHECK(label >= 0 && label < all, "label ", label, " of row ", row, " against a vocabulary of ", all);
      const S* x = static_cast<const S*>(args.logits.data) + row * args.logits.row_stride;
      lse = log_sum_exp_row(x, args.vocab);
      const std::int64_t here = label - args.first;
      if (here >= 0 && here < args.vocab) at_label = widen(x[here]);
    }
    if (loss) loss[row] = lse - at_label;
    if (label_logit) label_logit[row] = at_label;
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
    const std::int64_t here = label - args.first;
    const bool is_here = here >= 0 && here < args.vocab;
    const C at_label = is_here ? widen(x[here]) : C{0};  // before dlogits, which may alias logits
    const auto shift = hn::Set(d, lse), factor = hn::Set(d, scale);
    for_lanes(d, args.vocab, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Mul(exp(d, hn::Sub(load(d, x + i, part), shift)), factor), d, dx + i, part);
    });
    if (!is_here) continue;
    const auto probability = exp(d, hn::Set(d, at_label - lse));
    dx[here] = narrow<S>((hn::GetLane(probability) - C{1}) * scale);
  }
}

template <class C>
void join_rows(const CrossEntropyJoinArgs& args, std::int64_t begin, std::int64_t end) {
  const Tag<C> d;
  const auto part = [&](std::int64_t rank, std::int64_t which, std::int64_t row) {
    return static_cast<const C*>(args.parts)[(2 * rank + which) * args.rows + row];
  };
  for (std::int64_t row = begin; row < end; ++row) {
    C lse = 0, at_label = 0;
    if (args.labels[row] != kIgnoreLabel) {
      C top = part(0, 0, row), sum = 0;
      for (std::int64_t rank = 1; rank < args.ranks; ++rank) top = std::max(top, part(rank, 0, row));
      for (std::int64_t rank = 0; rank < args.ranks; ++rank) {
        sum += hn::GetLane(exp(d, hn::Set(d, part(rank, 0, row) - top)));
        at_label += part(rank, 1, row);
      }
      lse = top + hn::GetLane(log(d, hn::Set(d, sum)));
    }
    static_cast<C*>(args.loss)[row] = lse - at_label;
    static_cast<C*>(args.log_sum_exp)[row] = lse;
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

void join_all(const CrossEntropyJoinArgs& args, const StreamHandle& stream) {
  constexpr std::int64_t kRows = 1024;
  parallel_for(*stream.pool, args.rows, kRows, [&](std::int64_t begin, std::int64_t end) {
    args.dtype == DType::F64 ? join_rows<double>(args, begin, end) : join_rows<float>(args, begin, end);
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(loss_all);
HWY_EXPORT(gradient_all);
HWY_EXPORT(join_all);

void cross_entropy_forward(const CrossEntropyForwardArgs& args, const StreamHandle& stream) {
  HWY_DYNAMIC_DISPATCH(loss_all)(args, stream);
}
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const StreamHandle& stream) {
  HWY_DYNAMIC_DISPATCH(gradient_all)(args, stream);
}
void cross_entropy_join(const CrossEntropyJoinArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(join_all)(args, stream); }

}  // namespace deltron::kernels::cpu
#endif
