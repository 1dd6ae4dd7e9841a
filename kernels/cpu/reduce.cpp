// Reductions in a fixed order: fp64 partials of fixed blocks (of one tensor or of a table of them), ordered sums, the clipping factor.
#include "kernels/reduce.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_targets.h"
#include "kernels/multi_tensor.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

// Storage S as fp64 lanes.
template <class S, class Part>
HWY_INLINE hn::Vec<Tag<double>> load_wide(const S* from, Part part) {
  const Tag<double> d;
  if constexpr (std::is_same_v<S, double>) {
    return load(d, from, part);
  } else {
    const hn::Rebind<float, Tag<double>> narrow_tag;
    return hn::PromoteTo(d, load(narrow_tag, from, part));
  }
}

// Sum of squares and number of non-finite values of one block: four chains of vectors, then the rest.
template <class S>
void square_block(const S* x, std::int64_t count, double* sum, std::int64_t* nonfinite) {
  const Tag<double> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  std::int64_t bad = 0, i = 0;
  const auto count_bad = [&](hn::Vec<Tag<double>> v)
                             HWY_ATTR { bad += lanes - static_cast<std::int64_t>(hn::CountTrue(d, hn::IsFinite(v))); };
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto x0 = load_wide(x + i, Whole{}), x1 = load_wide(x + i + lanes, Whole{});
    const auto x2 = load_wide(x + i + 2 * lanes, Whole{}), x3 = load_wide(x + i + 3 * lanes, Whole{});
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
    count_bad(x0);
    count_bad(x1);
    count_bad(x2);
    count_bad(x3);
  }
  for_lanes(d, count - i, [&](std::int64_t at, auto part) HWY_ATTR {
    const auto v = load_wide(x + i + at, part);
    s0 = hn::MulAdd(v, v, s0);
    count_bad(v);
  });
  *sum = sum_lanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
  if (nonfinite != nullptr) *nonfinite = bad;
}

template <class S>
double sum_blocks(const S* x, std::int64_t count) {
  const Tag<double> d;
  double total = 0;
  for (std::int64_t begin = 0; begin < count; begin += 1024) {
    auto sum = hn::Zero(d);
    for_lanes(d, std::min<std::int64_t>(1024, count - begin),
              [&](std::int64_t i, auto part) HWY_ATTR { sum = hn::Add(sum, load_wide(x + begin + i, part)); });
    total += sum_lanes(d, sum);
  }
  return total;
}

void squared_norm_run(const SquaredNormArgs& args, std::int64_t block) {
  with_storage(args.dtype, "squared_norm", [&](auto storage) {
    const std::int64_t begin = block * kNormBlock;
    square_block(static_cast<const decltype(storage)*>(args.x) + begin, std::min(kNormBlock, args.count - begin),
                 args.partials + block, args.nonfinite == nullptr ? nullptr : args.nonfinite + block);
  });
}

void chunk_norm_run(const MultiTensorNormArgs& args, std::int64_t number) {
  const MultiTensorChunk& chunk = args.table.chunks[number];
  const MultiTensorEntry& entry = args.table.tensors[chunk.tensor];
  std::int64_t* nonfinite = args.nonfinite == nullptr ? nullptr : args.nonfinite + number;
  entry.dtype == DType::F64
      ? square_block(static_cast<const double*>(entry.grad) + chunk.begin, chunk.count, args.partials + number, nonfinite)
      : square_block(static_cast<const float*>(entry.grad) + chunk.begin, chunk.count, args.partials + number, nonfinite);
}

double sum_run(const SumArgs& args) {
  double result = 0;
  with_storage(args.dtype, "sum",
               [&](auto storage) { result = sum_blocks(static_cast<const decltype(storage)*>(args.x), args.count); });
  return result;
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(squared_norm_run);
HWY_EXPORT(chunk_norm_run);
HWY_EXPORT(sum_run);

void squared_norm(const SquaredNormArgs& args, const StreamHandle& stream) {
  const auto run = HWY_DYNAMIC_DISPATCH(squared_norm_run);
  stream.pool->run((args.count + kNormBlock - 1) / kNormBlock, [&](std::int64_t block) { run(args, block); });
}

void multi_tensor_norm(const MultiTensorNormArgs& args, const StreamHandle& stream) {
  const auto run = HWY_DYNAMIC_DISPATCH(chunk_norm_run);
  stream.pool->run(args.table.chunk_count, [&](std::int64_t chunk) { run(args, chunk); });
}

void ordered_sum(const OrderedSumArgs& args, const StreamHandle&) {
  double total = 0;
  for (std::int64_t i = 0; i < args.count; ++i) total += args.x[i];
  *args.result = total;
}

void sum(const SumArgs& args, const StreamHandle&) { *args.result = HWY_DYNAMIC_DISPATCH(sum_run)(args); }

void clip_scale(const ClipScaleArgs& args, const StreamHandle&) {
  const double norm = std::sqrt(*args.squared_norm);
  const double wanted = args.clip > 0 ? args.clip / (norm + 1e-6) : 1.0;
  if (args.norm != nullptr) *args.norm = norm;
  if (args.scale != nullptr) *args.scale = wanted >= 1.0 ? 1.0 : wanted;  // a NaN stays one
  if (args.nonfinite_flag != nullptr && !std::isfinite(norm)) *args.nonfinite_flag = 1;
}

}  // namespace deltron::kernels::cpu
#endif
