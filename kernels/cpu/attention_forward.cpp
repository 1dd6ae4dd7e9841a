// Softmax attention, forward: one item is a block of queries of one head; it walks the key blocks in ascending order with a
// running maximum and sum. Everything is kept transposed, [keys or dim, queries]: a query is a lane.
#include "kernels/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

template <class C>
struct ForwardScratch {
  ForwardScratch(AttentionCarver& carver, std::int64_t dim)
      : query(carver.take<C>(dim * kAttentionBlock)),
        out(carver.take<C>(dim * kAttentionBlock)),
        score(carver.take<C>(kAttentionBlock * kAttentionBlock)),
        keep(carver.take<C>(kAttentionBlock * kAttentionBlock)),
        rows(carver.take<C>(kAttentionBlock * pad_to(dim, kAttentionPad))),
        highest(carver.take<C>(kAttentionBlock)),
        sum(carver.take<C>(kAttentionBlock)),
        shrink(carver.take<C>(kAttentionBlock)) {}
  C* query;    // [dim, queries], times scale
  C* out;      // [dim, queries]
  C* score;    // [keys, kAttentionBlock]
  C* keep;     // likewise: dropout factors
  C* rows;     // widened k or v
  C* highest;  // [queries] running maximum
  C* sum;      // [queries] running sum
  C* shrink;   // [queries] factor of what was summed before this key block
};

// score becomes exp(score - new maximum); maximum, sum and shrink follow.
template <class C>
void softmax_step(const ForwardScratch<C>& s, std::int64_t queries, std::int64_t keys, bool diagonal, bool first) {
  const Tag<C> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto hidden = hn::Set(d, static_cast<C>(-std::numeric_limits<C>::infinity()));
  for (std::int64_t i = 0; i < queries; i += lanes) {
    C* score = s.score + i;
    // On the diagonal: keys below `open` are seen by all lanes, those from `closed` on by none.
    const std::int64_t open = diagonal ? std::min(keys, i + 1) : keys;
    const std::int64_t closed = diagonal ? std::min(keys, i + lanes) : keys;
    const auto before = first ? hidden : hn::LoadU(d, s.highest + i);
    auto highest = before;
    for (std::int64_t j = 0; j < open; ++j) highest = hn::Max(highest, hn::LoadU(d, score + j * kAttentionBlock));
    for (std::int64_t j = open; j < closed; ++j) {
      const auto value = hn::IfThenElse(hidden_queries(d, i, j), hidden, hn::LoadU(d, score + j * kAttentionBlock));
      hn::StoreU(value, d, score + j * kAttentionBlock);
      highest = hn::Max(highest, value);
    }
    auto sum = hn::Zero(d);
    if (!first) {
      const auto shrink = exp_score(d, hn::Sub(before, highest));
      hn::StoreU(shrink, d, s.shrink + i);
      sum = hn::Mul(hn::LoadU(d, s.sum + i), shrink);
    }
    for (std::int64_t j = 0; j < closed; ++j) {
      const auto value = exp_score(d, hn::Sub(hn::LoadU(d, score + j * kAttentionBlock), highest));
      hn::StoreU(value, d, score + j * kAttentionBlock);
      sum = hn::Add(sum, value);
    }
    const std::int64_t strip_end = std::min(keys, pad_to(i + lanes, kAttentionStrip));
    for (std::int64_t j = closed; j < strip_end; ++j) hn::StoreU(hn::Zero(d), d, score + j * kAttentionBlock);
    hn::StoreU(highest, d, s.highest + i);
    hn::StoreU(sum, d, s.sum + i);
  }
}

// out [dim, queries] = out * shrink + v^T [dim, keys] score [keys, queries]; on the diagonal in strips of queries.
template <class C>
void add_values(const ForwardScratch<C>& s, TileRows<C> v, std::int64_t dim, std::int64_t queries, std::int64_t keys, bool diagonal,
                bool first) {
  const Tag<C> d;
  const std::int64_t strip = diagonal ? kAttentionStrip : queries;
  for (std::int64_t i = 0; i < queries; i += strip) {
    const std::int64_t width = std::min(strip, queries - i);
    const TileProduct<C> product{dim,
                                 width,
                                 diagonal ? std::min(keys, i + strip) : keys,
                                 v.data,
                                 1,
                                 v.row_stride,
                                 s.score + i,
                                 kAttentionBlock,
                                 s.out + i,
                                 queries,
                                 s.shrink + i};
    if (first) {
      tile_product<TileStart::Zero>(d, product);
    } else {
      tile_product<TileStart::Scale>(d, product);
    }
  }
}

template <class S>
void forward_block(const AttentionForwardArgs& args, const AttentionBlock& block, std::int64_t head,
                   const ForwardScratch<Compute<S>>& s) {
  using C = Compute<S>;
  const Tag<C> d;
  const std::int64_t kv_head = head / (args.query_heads / args.kv_heads), dim = args.dim, queries = block.padded_rows();
  const bool dropout = args.rng.drop_probability > 0;
  transpose_in(at<S>(args.q, block, block.first, head), args.q.token_stride, block.rows, dim, static_cast<C>(args.scale), s.query,
               queries);
  for (std::int64_t first_key = 0; first_key <= block.first; first_key += kAttentionBlock) {
    const bool diagonal = first_key == block.first, first = first_key == 0;
    const std::int64_t keys = diagonal ? block.rows : kAttentionBlock;
    const TileRows<C> k = load_rows(at<S>(args.k, block, first_key, kv_head), args.k.token_stride, keys, dim, false, s.rows);
    const std::int64_t strip = diagonal ? kAttentionStrip : keys;
    for (std::int64_t j = 0; j < keys; j += strip) {
      const std::int64_t from = diagonal ? j : 0;  // earlier queries do not see this strip of keys
      tile_product<TileStart::Zero>(
          d, TileProduct<C>{std::min(strip, keys - j), queries - from, dim, k.data + j * k.row_stride, k.row_stride, 1,
                            s.query + from, queries, s.score + j * kAttentionBlock + from, kAttentionBlock});
    }
    softmax_step(s, queries, keys, diagonal, first);
    if (dropout) {
      dropout_tile(args.rng, head, block.document_begin + block.first, block.rows, first_key, keys, s.keep);
      const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
      for (std::int64_t j = 0; j < keys; ++j) {
        C* score = s.score + j * kAttentionBlock;
        for (std::int64_t i = diagonal ? j / kAttentionStrip * kAttentionStrip : 0; i < queries; i += lanes) {
          hn::StoreU(hn::Mul(hn::LoadU(d, score + i), hn::LoadU(d, s.keep + j * kAttentionBlock + i)), d, score + i);
        }
      }
    }
    const TileRows<C> v = load_rows(at<S>(args.v, block, first_key, kv_head), args.v.token_stride, keys, dim, false, s.rows);
    add_values(s, v, dim, queries, keys, diagonal, first);
  }
  for (std::int64_t i = 0; i < queries; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto sum = hn::LoadU(d, s.sum + i);
    hn::StoreU(hn::Add(hn::LoadU(d, s.highest + i), log(d, sum)), d, s.highest + i);
    hn::StoreU(hn::Div(hn::Set(d, C(1)), sum), d, s.shrink + i);
  }
  if (args.log_sum_exp != nullptr) {
    C* log_sum_exp = static_cast<C*>(args.log_sum_exp) + (block.document_begin + block.first) * args.query_heads + head;
    for (std::int64_t i = 0; i < block.rows; ++i) log_sum_exp[i * args.query_heads] = s.highest[i];
  }
  transpose_out(s.out, queries, block.rows, dim, s.shrink, at<S>(args.o, block, block.first, head), args.o.token_stride);
}

// The workspace: table of blocks, then scratch for every slot. Without memory: its size.
template <class S>
std::int64_t forward_typed(const AttentionForwardArgs& args, ThreadPool& pool, void* memory) {
  using C = Compute<S>;
  AttentionCarver carver(memory == nullptr ? nullptr : AttentionCarver::align(memory));
  AttentionBlock* blocks = carver.take<AttentionBlock>(most_attention_blocks(args.tokens, args.documents.count));
  const std::int64_t scratch_begin = carver.bytes();
  ForwardScratch<C>(carver, args.dim);
  const std::int64_t scratch_bytes = carver.bytes() - scratch_begin;
  const std::int64_t bytes = scratch_begin + scratch_bytes * pool.threads() + AttentionCarver::kLine;
  if (memory == nullptr) return bytes;
  DELTRON_CHECK_LE(bytes, args.workspace.bytes, "attention forward: workspace");
  const std::int64_t count = cut_attention_blocks(args.documents, blocks);
  run_in_slots(pool, count * args.query_heads, [&](std::int64_t item, std::int64_t slot) {
    AttentionCarver mine(AttentionCarver::align(memory) + scratch_begin + slot * scratch_bytes);
    const ForwardScratch<C> scratch(mine, args.dim);
    // Late blocks see the most keys: they go first.
    forward_block<S>(args, blocks[count - 1 - item / args.query_heads], item % args.query_heads, scratch);
  });
  return bytes;
}

std::int64_t attention_forward_run(const AttentionForwardArgs& args, ThreadPool& pool, void* memory) {
  std::int64_t bytes = 0;
  with_storage(args.dtype, "attention", [&](auto storage) { bytes = forward_typed<decltype(storage)>(args, pool, memory); });
  return bytes;
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(attention_forward_run);

namespace {
void check_shapes(const AttentionForwardArgs& args) {
  DELTRON_CHECK(args.dim > 0 && args.kv_heads > 0 && args.query_heads % args.kv_heads == 0, "attention: ", args.query_heads,
                " query heads over ", args.kv_heads, " kv heads of dim ", args.dim);
}
}  // namespace

std::int64_t attention_forward_workspace_bytes(const AttentionForwardArgs& args, const StreamHandle& stream) {
  check_shapes(args);
  return HWY_DYNAMIC_DISPATCH(attention_forward_run)(args, *stream.pool, nullptr);
}

void attention_forward(const AttentionForwardArgs& args, const StreamHandle& stream) {
  check_shapes(args);
  DELTRON_CHECK(args.workspace.data != nullptr, "attention forward needs its workspace");
  HWY_DYNAMIC_DISPATCH(attention_forward_run)(args, *stream.pool, args.workspace.data);
}

}  // namespace deltron::kernels::cpu
#endif
