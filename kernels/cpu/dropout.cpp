// Dropout fused with the residual sum, on the CPU. Decisions are addressed by (sample, offset, column), never stored.
#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/elementwise.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {  // names of one family stay in its file

constexpr std::int64_t kDropoutChunk = 256;  // columns whose words are made at a time

// x, or residual + x.
template <class S>
void plain_range(const DropoutAddArgs& args, std::int64_t begin, std::int64_t end) {
  const Tag<Compute<S>> d;
  const S* x = static_cast<const S*>(args.x) + begin;
  const S* residual = args.residual ? static_cast<const S*>(args.residual) + begin : nullptr;
  S* y = static_cast<S*>(args.y) + begin;
  for_lanes(d, end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    auto value = load(d, x + i, part);
    if (residual) value = hn::Add(load(d, residual + i, part), value);
    store(value, d, y + i, part);
  });
}

template <class S>
void dropout_rows(const DropoutAddArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const Tag<C> d;
  const hn::Rebind<std::uint32_t, Tag<C>> d32;
  const auto factor = hn::Set(d, static_cast<C>(1.0 / (1.0 - args.rng.drop_probability)));
  const auto threshold = hn::Set(d32, dropout_threshold(args.rng.drop_probability));
  HWY_ALIGN std::uint32_t words[kDropoutChunk + kPhiloxSlack];
  for (std::int64_t row = begin; row < end; ++row) {
    const std::uint64_t sample = static_cast<std::uint64_t>(args.rng.token_sample[row]);
    const std::uint32_t offset = static_cast<std::uint32_t>(args.rng.token_offset[row]);
    for (std::int64_t col = 0; col < args.cols; col += kDropoutChunk) {
      const std::int64_t count = std::min(kDropoutChunk, args.cols - col);
      philox_row(args.rng.key, sample, offset, static_cast<std::uint32_t>(col / 4), (count + 3) / 4, words);
      const S* x = static_cast<const S*>(args.x) + row * args.cols + col;
      const S* residual = args.residual ? static_cast<const S*>(args.residual) + row * args.cols + col : nullptr;
      S* y = static_cast<S*>(args.y) + row * args.cols + col;
      for_lanes(d, count, [&](std::int64_t i, auto part) HWY_ATTR {
        const auto dropped = hn::Lt(hn::LoadU(d32, words + i), threshold);
        const auto scaled = hn::Mul(load(d, x + i, part), factor);
        auto value = scaled;
        if constexpr (std::is_same_v<C, double>) {
          const hn::RebindToUnsigned<Tag<C>> d64;
          const auto wide = hn::PromoteTo(d64, hn::VecFromMask(d32, dropped));
          value = hn::IfThenZeroElse(hn::RebindMask(d, hn::Ne(wide, hn::Zero(d64))), scaled);
        } else {
          value = hn::IfThenZeroElse(hn::RebindMask(d, dropped), scaled);
        }
        if (residual) value = hn::Add(load(d, residual + i, part), value);
        store(value, d, y + i, part);
      });
    }
  }
}

void dropout_all(const DropoutAddArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "dropout_add", [&](auto s) {
    using S = decltype(s);
    if (args.rng.drop_probability == 0) {
      parallel_for(*stream.pool, args.rows * args.cols, kPartElements,
                   [&](std::int64_t begin, std::int64_t end) { plain_range<S>(args, begin, end); });
    } else {
      parallel_for(*stream.pool, args.rows, row_grain(args.cols),
                   [&](std::int64_t begin, std::int64_t end) { dropout_rows<S>(args, begin, end); });
    }
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(dropout_all);

void dropout_add(const DropoutAddArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.rng.drop_probability >= 0 && args.rng.drop_probability < 1, "drop probability ", args.rng.drop_probability);
  HWY_DYNAMIC_DISPATCH(dropout_all)(args, stream);
}

}  // namespace deltron::kernels::cpu
#endif
