// AdamW and SGD over a table of tensors, fp32 or fp64 state. Factors are formed in fp64; elements are independent of each other.
#include <cmath>

#include "kernels/cpu/simd_targets.h"
#include "kernels/multi_tensor.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/multi_tensor_update.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

// Model weights follow their masters; a null weight means that the master is the weight.
template <class C, class W>
void rewrite_weight(const C* master, W* weight, std::int64_t count) {
  const Tag<C> d;
  for_lanes(d, count, [&](std::int64_t i, auto part) HWY_ATTR { store(load(d, master + i, part), d, weight + i, part); });
}
template <class C>
void rewrite_weight(const C* master, const MultiTensorEntry& entry, const MultiTensorChunk& chunk) {
  if (entry.weight == nullptr) return;
  with_storage_of<C>(entry.weight_dtype, "optimizer", [&](auto storage) {
    rewrite_weight<C, decltype(storage)>(master, static_cast<decltype(storage)*>(entry.weight) + chunk.begin, chunk.count);
  });
}

template <class C>
void adamw_chunk(const MultiTensorAdamwArgs& args, double grad_scale, const MultiTensorEntry& entry, const MultiTensorChunk& chunk) {
  const Tag<C> d;
  const double step = static_cast<double>(args.step);
  const double correction1 = 1.0 - std::pow(args.beta1, step), correction2 = 1.0 - std::pow(args.beta2, step);
  const auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<C>(value)); };
  const auto scale = set(grad_scale), beta1 = set(args.beta1), beta2 = set(args.beta2);
  const auto rest1 = set(1.0 - args.beta1), rest2 = set(1.0 - args.beta2);
  const auto decay = set(entry.decays ? args.lr * args.weight_decay : 0.0), rate = set(args.lr / correction1);
  const auto root = set(1.0 / std::sqrt(correction2)), epsilon = set(args.epsilon);
  C* master = static_cast<C*>(entry.master) + chunk.begin;
  C* average = static_cast<C*>(entry.exp_avg) + chunk.begin;
  C* square = static_cast<C*>(entry.exp_avg_sq) + chunk.begin;
  const C* grad = static_cast<const C*>(entry.grad) + chunk.begin;
  for_lanes(d, chunk.count, [&](std::int64_t i, auto part) HWY_ATTR {
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
  rewrite_weight(static_cast<const C*>(master), entry, chunk);
}

template <class C>
void sgd_chunk(const MultiTensorSgdArgs& args, double grad_scale, const MultiTensorEntry& entry, const MultiTensorChunk& chunk) {
  const Tag<C> d;
  const auto scale = hn::Set(d, static_cast<C>(grad_scale)), decay = hn::Set(d, static_cast<C>(entry.decays ? args.weight_decay : 0.0));
  const auto rate = hn::Set(d, static_cast<C>(args.lr));
  C* master = static_cast<C*>(entry.master) + chunk.begin;
  const C* grad = static_cast<const C*>(entry.grad) + chunk.begin;
  for_lanes(d, chunk.count, [&](std::int64_t i, auto part) HWY_ATTR {
    const auto w = load(d, master + i, part);
    const auto g = hn::MulAdd(decay, w, hn::Mul(load(d, grad + i, part), scale));
    store(hn::NegMulAdd(rate, g, w), d, master + i, part);
  });
  rewrite_weight(static_cast<const C*>(master), entry, chunk);
}

void adamw_run(const MultiTensorAdamwArgs& args, double grad_scale, const MultiTensorEntry& entry, const MultiTensorChunk& chunk) {
  entry.dtype == DType::F64 ? adamw_chunk<double>(args, grad_scale, entry, chunk) : adamw_chunk<float>(args, grad_scale, entry, chunk);
}
void sgd_run(const MultiTensorSgdArgs& args, double grad_scale, const MultiTensorEntry& entry, const MultiTensorChunk& chunk) {
  entry.dtype == DType::F64 ? sgd_chunk<double>(args, grad_scale, entry, chunk) : sgd_chunk<float>(args, grad_scale, entry, chunk);
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(adamw_run);
HWY_EXPORT(sgd_run);

namespace {

// A chunk is cut further, so that a model of few chunks still keeps every thread at work.
constexpr std::int64_t kUpdatePieces = 4;

template <class Args, class Run>
void update(const Args& args, const StreamHandle& stream, const Run& run) {
  if (args.skip_flag != nullptr && *args.skip_flag != 0) return;
  const double grad_scale = args.grad_scale == nullptr ? 1.0 : *args.grad_scale;
  constexpr std::int64_t kPiece = kNormBlock / kUpdatePieces;
  stream.pool->run(args.table.chunk_count * kUpdatePieces, [&](std::int64_t part) {
    MultiTensorChunk piece = args.table.chunks[part / kUpdatePieces];
    const std::int64_t first = part % kUpdatePieces * kPiece, left = piece.count - first;
    if (left <= 0) return;
    piece.begin += first;
    piece.count = static_cast<std::int32_t>(left < kPiece ? left : kPiece);
    run(args, grad_scale, args.table.tensors[piece.tensor], piece);
  });
}

}  // namespace

void multi_tensor_adamw(const MultiTensorAdamwArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.step, 1, "AdamW counts its steps from 1");
  update(args, stream, HWY_DYNAMIC_DISPATCH(adamw_run));
}

void multi_tensor_sgd(const MultiTensorSgdArgs& args, const StreamHandle& stream) { update(args, stream, HWY_DYNAMIC_DISPATCH(sgd_run)); }

}  // namespace deltron::kernels::cpu
#endif
