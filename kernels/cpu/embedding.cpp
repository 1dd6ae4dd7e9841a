// Token embedding on the CPU. The backward cuts columns over the threads and walks the tokens in ascending order: no two parts
// touch one element, so the scatter-add is deterministic without sorting.
#include "kernels/embedding.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {  // names of one family stay in its file

constexpr std::int64_t kScatterColumns = 64;

template <class T, class S>
void gather_rows(const EmbeddingForwardArgs& args, std::int64_t begin, std::int64_t end) {
  const Tag<Compute<S>> d;
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t all = args.whole > 0 ? args.whole : args.vocab, id = args.ids[token];
    DELTRON_CHECK(id >= 0 && id < all, "token id ", id, " at ", token, " against a vocabulary of ", all);
    S* y = static_cast<S*>(args.y) + token * args.hidden;
    if (id < args.first || id >= args.first + args.vocab) {
      for_lanes(d, args.hidden, [&](std::int64_t i, auto part) HWY_ATTR { store(hn::Zero(d), d, y + i, part); });
      continue;
    }
    const T* x = static_cast<const T*>(args.table) + (id - args.first) * args.hidden;
    for_lanes(d, args.hidden, [&](std::int64_t i, auto part) HWY_ATTR { store(load(d, x + i, part), d, y + i, part); });
  }
}

template <class S>
void scatter_columns(const EmbeddingBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const Tag<C> d;
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const std::int64_t here = args.ids[token] - args.first;
    if (here < 0 || here >= args.vocab) continue;
    const S* dy = static_cast<const S*>(args.dy) + token * args.hidden + begin;
    C* row = static_cast<C*>(args.dtable) + here * args.hidden + begin;
    for_lanes(d, end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Add(load(d, row + i, part), load(d, dy + i, part)), d, row + i, part);
    });
  }
}

void gather_all(const EmbeddingForwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "embedding", [&](auto s) {
    using S = decltype(s);
    with_storage_of<Compute<S>>(args.table_dtype, "embedding", [&](auto t) {
      parallel_for(*stream.pool, args.tokens, row_grain(args.hidden),
                   [&](std::int64_t begin, std::int64_t end) { gather_rows<decltype(t), S>(args, begin, end); });
    });
  });
}

void scatter_all(const EmbeddingBackwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "embedding", [&](auto s) {
    parallel_for(*stream.pool, args.hidden, kScatterColumns,
                 [&](std::int64_t begin, std::int64_t end) { scatter_columns<decltype(s)>(args, begin, end); });
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(gather_all);
HWY_EXPORT(scatter_all);

void embedding_forward(const EmbeddingForwardArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(gather_all)(args, stream); }
std::int64_t embedding_backward_workspace_bytes(const EmbeddingBackwardArgs&, const StreamHandle&) { return 0; }
void embedding_backward(const EmbeddingBackwardArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(scatter_all)(args, stream); }

}  // namespace deltron::kernels::cpu
#endif
