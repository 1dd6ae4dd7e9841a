// Softmax attention, backward. First every block of queries is laid out for the products, with D = rowsum(do * o). Then either
// one item a (document, kv head) does everything, or, for documents that would keep one thread busy for long, one item a
// key block sums dk and dv and one item a query block sums dq. Both ways add the same terms in the same order:
// dk, dv over the group's heads ascending, then query blocks ascending; dq over key blocks ascending. So the choice, which may
// look at the number of threads, changes no bit.
#include "kernels/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/attention_tiles-inl.h"

#ifndef DELTRON_KERNELS_CPU_ATTENTION_BACKWARD_ITEMS
#define DELTRON_KERNELS_CPU_ATTENTION_BACKWARD_ITEMS
namespace deltron::kernels::cpu {
enum class BackwardWork : std::int32_t { WholeDocument, KeyBlock, QueryBlock };
struct BackwardItem {
  BackwardWork work;
  std::int32_t head;   // kv head; query head for QueryBlock
  std::int64_t block;  // of the table; the document's first for WholeDocument
};
}  // namespace deltron::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

// Query blocks laid out once, read by every item.
template <class C>
struct Prepared {
  Prepared(AttentionCarver& carver, std::int64_t heads, std::int64_t rows, std::int64_t dim)
      : padded_rows(rows),
        dim_(dim),
        query(carver.take<C>(heads * rows * dim)),
        d_out(carver.take<C>(heads * rows * dim)),
        d_query(carver.take<C>(heads * rows * dim)),
        log_sum_exp(carver.take<C>(heads * rows)),
        delta(carver.take<C>(heads * rows)) {}
  std::int64_t row(const AttentionBlock& block, std::int64_t head) const { return head * padded_rows + block.padded_begin; }
  std::int64_t tile(const AttentionBlock& block, std::int64_t head) const { return row(block, head) * dim_; }
  std::int64_t padded_rows, dim_;
  C* query;        // tiles [dim, queries], times scale
  C* d_out;        // tiles [dim, queries]
  C* d_query;      // tiles [dim, queries], sums of whole documents
  C* log_sum_exp;  // [queries]; so high on padding that its probabilities are 0
  C* delta;        // [queries] D
};

template <class C>
struct BackwardScratch {
  BackwardScratch(AttentionCarver& carver, std::int64_t dim) : padded_dim(pad_to(dim, kAttentionPad)) {
    const std::int64_t square = kAttentionBlock * kAttentionBlock, wide = kAttentionBlock * padded_dim;
    score = carver.take<C>(square);
    d_score = carver.take<C>(square);
    keep = carver.take<C>(square);
    for (C** rows : {&k_rows, &v_rows, &q_rows, &do_rows, &dk, &dv, &d_query}) *rows = carver.take<C>(wide);
  }
  std::int64_t padded_dim;
  C *score, *d_score, *keep;              // [keys, kAttentionBlock]
  C *k_rows, *v_rows, *q_rows, *do_rows;  // widened or padded copies where storage cannot be used in place
  C *dk, *dv;                             // [keys, padded_dim]
  C* d_query;                             // [dim, queries] of a QueryBlock item
};

template <class S>
void prepare_block(const AttentionBackwardArgs& args, const AttentionBlock& block, std::int64_t head,
                   const Prepared<Compute<S>>& p) {
  using C = Compute<S>;
  const Tag<C> d;
  const std::int64_t dim = args.dim, queries = block.padded_rows();
  const S* d_out = at<S>(args.d_o, block, block.first, head);
  const S* out = at<S>(args.o, block, block.first, head);
  transpose_in(at<S>(args.q, block, block.first, head), args.q.token_stride, block.rows, dim, static_cast<C>(args.scale),
               p.query + p.tile(block, head), queries);
  transpose_in(d_out, args.d_o.token_stride, block.rows, dim, C(1), p.d_out + p.tile(block, head), queries);
  C* log_sum_exp = p.log_sum_exp + p.row(block, head);
  C* delta = p.delta + p.row(block, head);
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::int64_t token = block.document_begin + block.first + i;
    log_sum_exp[i] = i < block.rows ? static_cast<const C*>(args.log_sum_exp)[token * args.query_heads + head] : C(1e30);
    auto sum = hn::Zero(d);
    if (i < block.rows) {
      for_lanes(d, dim, [&](std::int64_t c, auto part) HWY_ATTR {
        sum =
            hn::MulAdd(load(d, d_out + i * args.d_o.token_stride + c, part), load(d, out + i * args.o.token_stride + c, part), sum);
      });
    }
    delta[i] = sum_lanes(d, sum);
  }
}

// Probabilities (times dropout) and score gradients of one pair of blocks, from raw scores and d_out v^T.
template <class C>
void score_gradients(const BackwardScratch<C>& s, const C* log_sum_exp, const C* delta, std::int64_t queries, std::int64_t keys,
                     bool diagonal, bool dropout) {
  const Tag<C> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < queries; i += lanes) {
    const auto high = hn::LoadU(d, log_sum_exp + i), mean = hn::LoadU(d, delta + i);
    const std::int64_t open = diagonal ? std::min(keys, i + 1) : keys;
    const std::int64_t closed = diagonal ? std::min(keys, i + lanes) : keys;
    for (std::int64_t j = 0; j < closed; ++j) {
      const std::int64_t place = j * kAttentionBlock + i;
      auto probability = exp_score(d, hn::Sub(hn::LoadU(d, s.score + place), high));
      if (j >= open) probability = hn::IfThenZeroElse(hidden_queries(d, i, j), probability);
      auto incoming = hn::LoadU(d, s.d_score + place);
      if (dropout) {
        const auto keep = hn::LoadU(d, s.keep + place);
        incoming = hn::Mul(incoming, keep);
        hn::StoreU(hn::Mul(probability, keep), d, s.score + place);
      } else {
        hn::StoreU(probability, d, s.score + place);
      }
      hn::StoreU(hn::Mul(probability, hn::Sub(incoming, mean)), d, s.d_score + place);
    }
    const std::int64_t strip_end = std::min(keys, pad_to(i + lanes, kAttentionStrip));
    for (std::int64_t j = closed; j < strip_end; ++j) {
      hn::StoreU(hn::Zero(d), d, s.score + j * kAttentionBlock + i);
      hn::StoreU(hn::Zero(d), d, s.d_score + j * kAttentionBlock + i);
    }
  }
}

template <class S>
class BackwardTile {
 public:
  using C = Compute<S>;
  BackwardTile(const AttentionBackwardArgs& args, const Prepared<C>& prepared, const BackwardScratch<C>& scratch)
      : args_(args), p_(prepared), s_(scratch) {}

  void load_keys(const AttentionBlock& block, std::int64_t kv_head) {
    keys_ = block;
    k_ = load_rows(at<S>(args_.k, block, block.first, kv_head), args_.k.token_stride, block.rows, args_.dim, false, s_.k_rows);
    v_ = load_rows(at<S>(args_.v, block, block.first, kv_head), args_.v.token_stride, block.rows, args_.dim, false, s_.v_rows);
  }

  // Adds the pair's part to dk, dv (if `add_keys`) and to `d_query` [dim, queries] (unless null).
  void add_pair(const AttentionBlock& block, std::int64_t head, bool add_keys, C* d_query) {
    const Tag<C> d;
    const bool diagonal = block.first == keys_.first, dropout = args_.rng.drop_probability > 0;
    const std::int64_t queries = block.padded_rows(), keys = keys_.rows, dim = args_.dim;
    const std::int64_t strip = diagonal ? kAttentionStrip : kAttentionBlock;
    for (std::int64_t j = 0; j < keys; j += strip) {
      const std::int64_t from = diagonal ? j : 0, height = std::min(strip, keys - j), to = j * kAttentionBlock + from;
      tile_product<TileStart::Zero>(
          d, TileProduct<C>{height, queries - from, dim, k_.data + j * k_.row_stride, k_.row_stride, 1,
                            p_.query + p_.tile(block, head) + from, queries, s_.score + to, kAttentionBlock});
      tile_product<TileStart::Zero>(
          d, TileProduct<C>{height, queries - from, dim, v_.data + j * v_.row_stride, v_.row_stride, 1,
                            p_.d_out + p_.tile(block, head) + from, queries, s_.d_score + to, kAttentionBlock});
    }
    if (dropout) dropout_tile(args_.rng, head, block.document_begin + block.first, block.rows, keys_.first, keys, s_.keep);
    score_gradients(s_, p_.log_sum_exp + p_.row(block, head), p_.delta + p_.row(block, head), queries, keys, diagonal, dropout);
    if (add_keys) {
      const TileRows<C> d_out =
          load_rows(at<S>(args_.d_o, block, block.first, head), args_.d_o.token_stride, block.rows, dim, true, s_.do_rows);
      const TileRows<C> q =
          load_rows(at<S>(args_.q, block, block.first, head), args_.q.token_stride, block.rows, dim, true, s_.q_rows);
      for (std::int64_t j = 0; j < keys; j += strip) {
        add_key_rows(s_.score, d_out, j, std::min(strip, keys - j), diagonal ? j : 0, block.rows, s_.dv);
        add_key_rows(s_.d_score, q, j, std::min(strip, keys - j), diagonal ? j : 0, block.rows, s_.dk);
      }
    }
    if (d_query == nullptr) return;
    for (std::int64_t i = 0; i < queries; i += strip) {
      const TileProduct<C> product{dim,
                                   std::min(strip, queries - i),
                                   diagonal ? std::min(keys, i + strip) : keys,
                                   k_.data,
                                   1,
                                   k_.row_stride,
                                   s_.d_score + i,
                                   kAttentionBlock,
                                   d_query + i,
                                   queries};
      if (keys_.first == 0) {
        tile_product<TileStart::Zero>(d, product);
      } else {
        tile_product<TileStart::Keep>(d, product);
      }
    }
  }

  void clear_keys() {
    std::fill_n(s_.dk, kAttentionBlock * s_.padded_dim, C(0));
    std::fill_n(s_.dv, kAttentionBlock * s_.padded_dim, C(0));
  }
  void store_keys(std::int64_t kv_head) {
    store_rows(s_.dk, s_.padded_dim, keys_.rows, args_.dim, static_cast<C>(args_.scale),
               at<S>(args_.dk, keys_, keys_.first, kv_head), args_.dk.token_stride);
    store_rows(s_.dv, s_.padded_dim, keys_.rows, args_.dim, C(1), at<S>(args_.dv, keys_, keys_.first, kv_head),
               args_.dv.token_stride);
  }
  void store_query(const AttentionBlock& block, std::int64_t head, const C* d_query) {
    C factor[kAttentionBlock];
    std::fill_n(factor, kAttentionBlock, static_cast<C>(args_.scale));
    transpose_out(d_query, block.padded_rows(), block.rows, args_.dim, factor, at<S>(args_.dq, block, block.first, head),
                  args_.dq.token_stride);
  }

 private:
  // sum [keys j.., padded_dim] += tile [keys j.., queries from..] rows [queries from.., padded_dim]
  void add_key_rows(const C* tile, TileRows<C> rows, std::int64_t j, std::int64_t height, std::int64_t from, std::int64_t queries,
                    C* sum) {
    const Tag<C> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    tile_product<TileStart::Keep>(
        d, TileProduct<C>{height, pad_to(args_.dim, lanes), queries - from, tile + j * kAttentionBlock + from, kAttentionBlock, 1,
                          rows.data + from * rows.row_stride, rows.row_stride, sum + j * s_.padded_dim, s_.padded_dim});
  }

  const AttentionBackwardArgs& args_;
  const Prepared<C>& p_;
  const BackwardScratch<C>& s_;
  AttentionBlock keys_{};
  TileRows<C> k_{}, v_{};
};

template <class S>
void backward_item(const AttentionBackwardArgs& args, const AttentionBlock* blocks, const BackwardItem& item,
                   const Prepared<Compute<S>>& prepared, const BackwardScratch<Compute<S>>& scratch) {
  const std::int64_t group = args.query_heads / args.kv_heads, head = item.head;
  const AttentionBlock& here = blocks[item.block];
  const AttentionBlock* first = &here - here.first / kAttentionBlock;
  const AttentionBlock* last = first + (here.document_length - 1) / kAttentionBlock;
  BackwardTile<S> tile(args, prepared, scratch);
  if (item.work == BackwardWork::QueryBlock) {
    for (const AttentionBlock* keys = first; keys <= &here; ++keys) {
      tile.load_keys(*keys, head / group);
      tile.add_pair(here, head, false, scratch.d_query);
    }
    tile.store_query(here, head, scratch.d_query);
    return;
  }
  const bool whole = item.work == BackwardWork::WholeDocument;
  for (const AttentionBlock* keys = &here; keys <= (whole ? last : &here); ++keys) {
    tile.load_keys(*keys, head);
    tile.clear_keys();
    for (std::int64_t query_head = head * group; query_head < (head + 1) * group; ++query_head) {
      for (const AttentionBlock* queries = keys; queries <= last; ++queries) {
        tile.add_pair(*queries, query_head, true, whole ? prepared.d_query + prepared.tile(*queries, query_head) : nullptr);
      }
    }
    tile.store_keys(head);
  }
  if (!whole) return;
  for (std::int64_t query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    for (const AttentionBlock* queries = first; queries <= last; ++queries) {
      tile.store_query(*queries, query_head, prepared.d_query + prepared.tile(*queries, query_head));
    }
  }
}

// A document is split where its item would outlast a fair share of the work by more than the second computation of the scores
// costs.
inline std::int64_t plan_items(const AttentionBackwardArgs& args, const AttentionBlock* blocks, std::int64_t count, int threads,
                               BackwardItem* items) {
  double total = 0;
  bool equal = true;
  for (std::int64_t n = 0; n < args.documents.count; ++n) {
    const std::int64_t length = args.documents.cu_seqlens[n + 1] - args.documents.cu_seqlens[n];
    total += static_cast<double>(length) * static_cast<double>(length) * static_cast<double>(args.kv_heads);
    equal = equal && length == args.documents.cu_seqlens[1] - args.documents.cu_seqlens[0];
  }
  const bool even = equal && (args.documents.count * args.kv_heads) % threads == 0;
  std::int64_t made = 0;
  for (std::int64_t b = 0; b < count; ++b) {
    const double cost = static_cast<double>(blocks[b].document_length) * static_cast<double>(blocks[b].document_length);
    const bool split = threads > 1 && !even && cost > 0.4 * total / threads;
    if (!split && blocks[b].first > 0) continue;
    for (std::int64_t h = 0; h < args.kv_heads; ++h) {
      items[made++] = BackwardItem{split ? BackwardWork::KeyBlock : BackwardWork::WholeDocument, static_cast<std::int32_t>(h), b};
    }
    if (!split) continue;
    for (std::int64_t h = 0; h < args.query_heads; ++h) {
      items[made++] = BackwardItem{BackwardWork::QueryBlock, static_cast<std::int32_t>(h), b};
    }
  }
  return made;
}

template <class S>
std::int64_t backward_typed(const AttentionBackwardArgs& args, ThreadPool& pool, void* memory) {
  using C = Compute<S>;
  const std::int64_t most_blocks = most_attention_blocks(args.tokens, args.documents.count);
  AttentionCarver carver(memory == nullptr ? nullptr : AttentionCarver::align(memory));
  AttentionBlock* blocks = carver.take<AttentionBlock>(most_blocks);
  BackwardItem* items = carver.take<BackwardItem>(most_blocks * (args.query_heads + args.kv_heads));
  const Prepared<C> prepared(carver, args.query_heads, most_padded_rows(args.tokens, args.documents.count), args.dim);
  const std::int64_t scratch_begin = carver.bytes();
  BackwardScratch<C>(carver, args.dim);
  const std::int64_t scratch_bytes = carver.bytes() - scratch_begin;
  const std::int64_t bytes = scratch_begin + scratch_bytes * pool.threads() + AttentionCarver::kLine;
  if (memory == nullptr) return bytes;
  DELTRON_CHECK_LE(bytes, args.workspace.bytes, "attention backward: workspace");
  const std::int64_t count = cut_attention_blocks(args.documents, blocks);
  parallel_for(pool, count * args.query_heads, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) prepare_block<S>(args, blocks[i / args.query_heads], i % args.query_heads, prepared);
  });
  const std::int64_t work = plan_items(args, blocks, count, pool.threads(), items);
  run_in_slots(pool, work, [&](std::int64_t item, std::int64_t slot) {
    AttentionCarver mine(AttentionCarver::align(memory) + scratch_begin + slot * scratch_bytes);
    const BackwardScratch<C> scratch(mine, args.dim);
    backward_item<S>(args, blocks, items[item], prepared, scratch);
  });
  return bytes;
}

std::int64_t attention_backward_run(const AttentionBackwardArgs& args, ThreadPool& pool, void* memory) {
  std::int64_t bytes = 0;
  with_storage(args.dtype, "attention", [&](auto storage) { bytes = backward_typed<decltype(storage)>(args, pool, memory); });
  return bytes;
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(attention_backward_run);

namespace {
void check_shapes(const AttentionBackwardArgs& args) {
  DELTRON_CHECK(args.dim > 0 && args.kv_heads > 0 && args.query_heads % args.kv_heads == 0, "attention: ", args.query_heads,
                " query heads over ", args.kv_heads, " kv heads of dim ", args.dim);
}
}  // namespace

std::int64_t attention_backward_workspace_bytes(const AttentionBackwardArgs& args, const StreamHandle& stream) {
  check_shapes(args);
  return HWY_DYNAMIC_DISPATCH(attention_backward_run)(args, *stream.pool, nullptr);
}

void attention_backward(const AttentionBackwardArgs& args, const StreamHandle& stream) {
  check_shapes(args);
  DELTRON_CHECK(args.workspace.data != nullptr, "attention backward needs its workspace");
  HWY_DYNAMIC_DISPATCH(attention_backward_run)(args, *stream.pool, args.workspace.data);
}

}  // namespace deltron::kernels::cpu
#endif
