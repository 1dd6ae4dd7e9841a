// AdamW and SGD updates, fp32 or fp64 state. Factors are formed in fp64 once a call; elements are independent of each other.
#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

// Model weights follow their masters; a null weight means that the master is the weight.
template <class C, class W>
void rewrite_weight(const C* master, W* weight, std::int64_t begin, std::int64_t end) {
  const Tag<C> d;
  for_lanes(d, end - begin,
            [&](std::int64_t i, auto part) HWY_ATTR { store(load(d, master + begin + i, part), d, weight + begin + i, part); });
}
template <class C>
void rewrite_weight(const C* master, void* weight, DType dtype, std::int64_t begin, std::int64_t end) {
  if (weight == nullptr) return;
  with_storage_of<C>(dtype, "optimizer", [&](auto storage) {
    rewrite_weight<C, decltype(storage)>(master, static_cast<decltype(storage)*>(weight), begin, end);
  });
}

template <class C>
void adamw_range(const AdamwArgs& args, double grad_scale, std::int64_t begin, std::int64_t end) {
  const Tag<C> d;
  const double step = static_cast<double>(args.step);
  const double correction1 = 1.0 - std::pow(args.beta1, step), correction2 = 1.0 - std::pow(args.beta2, step);
  const auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<C>(value)); };
  const auto scale = set(grad_scale), beta1 = set(args.beta1), beta2 = set(args.beta2);
  const auto rest1 = set(1.0 - args.beta1), rest2 = set(1.0 - args.beta2);
  const auto decay = set(args.lr * args.weight_decay), rate = set(args.lr / correction1);
  const auto root = set(1.0 / std::sqrt(correction2)), epsilon = set(args.epsilon);
  C* master = static_cast<C*>(args.master) + begin;
  C* average = static_cast<C*>(args.exp_avg) + begin;
  C* square = static_cast<C*>(args.exp_avg_sq) + begin;
  const C* grad = static_cast<const C*>(args.grad) + begin;
  for_lanes(d, end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    const auto g = hn::Mul(load(d, grad + i, part), scale);
    const auto m = hn::MulAdd(beta1, load(d, average + i, part), hn::Mul(rest1, g));
    const auto v = hn::MulAdd(beta2, load(d, square + i, part), hn::Mul(rest2, hn::Mul(g, g)));
    auto w = load(d, master + i, part);
    w = hn::NegMulAdd(decay, w, w);
    w = hn::Sub(w, hn::Div(hn::Mul(rate, m), hn::MulAdd(hn::Sqrt(v), root, epsilon)));
    store(m, d, average + i, part);
    store(v, d, square + i, part);
    store(w, d, master + i, part);
  });
  rewrite_weight(static_cast<const C*>(args.master), args.weight, args.weight_dtype, begin, end);
}

template <class C>
void sgd_range(const SgdArgs& args, double grad_scale, std::int64_t begin, std::int64_t end) {
  const Tag<C> d;
  const auto scale = hn::Set(d, static_cast<C>(grad_scale)), decay = hn::Set(d, static_cast<C>(args.weight_decay));
  const auto rate = hn::Set(d, static_cast<C>(args.lr));
  C* master = static_cast<C*>(args.master) + begin;
  const C* grad = static_cast<const C*>(args.grad) + begin;
  for_lanes(d, end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    const auto w = load(d, master + i, part);
    const auto g = hn::MulAdd(decay, w, hn::Mul(load(d, grad + i, part), scale));
    store(hn::NegMulAdd(rate, g, w), d, master + i, part);
  });
  rewrite_weight(static_cast<const C*>(args.master), args.weight, args.weight_dtype, begin, end);
}

void adamw_run(const AdamwArgs& args, double grad_scale, std::int64_t begin, std::int64_t end) {
  args.dtype == DType::F64 ? adamw_range<double>(args, grad_scale, begin, end) : adamw_range<float>(args, grad_scale, begin, end);
}
void sgd_run(const SgdArgs& args, double grad_scale, std::int64_t begin, std::int64_t end) {
  args.dtype == DType::F64 ? sgd_range<double>(args, grad_scale, begin, end) : sgd_range<float>(args, grad_scale, begin, end);
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(adamw_run);
HWY_EXPORT(sgd_run);

namespace {

constexpr std::int64_t kOptimizerGrain = 16384;

template <class Args, class Run>
void update(const Args& args, const StreamHandle& stream, const Run& run) {
  DELTRON_CHECK(args.dtype == DType::F32 || args.dtype == DType::F64, "optimizer state is fp32 or fp64, not ",
                dtype_name(args.dtype));
  if (args.skip_flag != nullptr && *args.skip_flag != 0) return;
  const double grad_scale = args.grad_scale == nullptr ? 1.0 : *args.grad_scale;
  parallel_for(*stream.pool, args.count, kOptimizerGrain,
               [&](std::int64_t begin, std::int64_t end) { run(args, grad_scale, begin, end); });
}

}  // namespace

void adamw(const AdamwArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.step, 1, "AdamW counts its steps from 1");
  update(args, stream, HWY_DYNAMIC_DISPATCH(adamw_run));
}

void sgd(const SgdArgs& args, const StreamHandle& stream) { update(args, stream, HWY_DYNAMIC_DISPATCH(sgd_run)); }

}  // namespace deltron::kernels::cpu
#endif
