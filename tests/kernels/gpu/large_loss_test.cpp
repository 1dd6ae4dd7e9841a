// Cross entropy, embedding, optimizers, reductions, matrix products and attention on tensors of more than 2^31 elements, each against a small
// run on the same rows, or against sums formed on the host.
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda/products.h"
#include "kernels/embedding.h"
#include "kernels/multi_tensor.h"
#include "kernels/reduce.h"
#include "tests/kernels/gpu/device_array.h"

namespace deltron::test {
namespace {

using namespace kernels;

constexpr DType kBf16 = DType::BF16, kF32 = DType::F32;

class LargeLoss : public LargeGpu {
 protected:
  StreamHandle stream_ = device_stream();
};

std::vector<char> raw(const std::vector<std::int32_t>& values) {
  std::vector<char> bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
const std::int32_t* ints(const DeviceArray& a) { return reinterpret_cast<const std::int32_t*>(a.data()); }

TEST_F(LargeLoss, cross_entropy_of_more_logits_than_2_to_the_31) {
  DELTRON_NEED_GIB(12);
  constexpr std::int64_t kVocab = 131072, kPeriod = 67, kRows = kPeriod * 246;
  static_assert(kRows * kVocab > kPast32Bits);
  std::vector<std::int32_t> labels(kPeriod);
  for (std::size_t r = 0; r < kPeriod; ++r) labels[r] = r % 9 == 8 ? kIgnoreLabel : static_cast<std::int32_t>((r * 7919 + 130000) % kVocab);
  const std::vector<double> pattern = TestRandom(1).values(kPeriod * kVocab, 4);
  struct Result {
    DeviceArray loss, lse, d_logits;
  };
  const auto run = [&](std::int64_t rows) {
    DeviceArray logits(kBf16, rows * kVocab), label(DType::I32, rows), d_loss(kF32, rows);
    logits.repeat(pattern), label.repeat(raw(labels)), d_loss.repeat(std::vector<double>{0.5});
    Result r{DeviceArray(kF32, rows), DeviceArray(kF32, rows), {}};
    CrossEntropyForwardArgs f{rows, kVocab, kBf16, {logits.data(), kVocab}, ints(label), r.loss.data(), r.lse.data()};
    cuda::cross_entropy_forward(f, stream_);
    CrossEntropyBackwardArgs b{rows, kVocab, kBf16, f.logits, f.labels, r.lse.data(), d_loss.data(), {logits.data(), kVocab}};
    cuda::cross_entropy_backward(b, stream_);  // in place
    finish("cross entropy");
    r.d_logits = std::move(logits);
    return r;
  };
  const Result small = run(kPeriod), large = run(kRows);
  EXPECT_TRUE(repeats(large.loss, small.loss));
  EXPECT_TRUE(repeats(large.lse, small.lse));
  EXPECT_TRUE(repeats(large.d_logits, small.d_logits));
  // The small run itself, by hand: row 1.
  double sum = 0;
  TypedBuffer one(kBf16, 1, 0);
  const auto logit = [&](std::int64_t column) {
    one.set(0, pattern[static_cast<std::size_t>(kVocab + column)]);
    return one.get(0);
  };
  for (std::int64_t c = 0; c < kVocab; ++c) sum += std::exp(logit(c));
  EXPECT_NEAR(small.loss.values(1, 1)[0], std::log(sum) - logit(labels[1]), 1e-4);
}

TEST_F(LargeLoss, embedding_with_more_outputs_than_2_to_the_31) {
  DELTRON_NEED_GIB(12);
  constexpr std::int64_t kHidden = 4096, kVocab = 1009, kPeriod = 251, kPeriods = 2090, kTokens = kPeriod * kPeriods;
  std::vector<std::int32_t> ids(kPeriod);
  for (std::size_t t = 0; t < kPeriod; ++t) ids[t] = static_cast<std::int32_t>(t * t % kVocab);
  DeviceArray table(kBf16, kVocab * kHidden);
  table.repeat(TestRandom(2).values(kVocab * kHidden));
  struct Result {
    DeviceArray y, d_table;
  };
  const auto run = [&](std::int64_t tokens) {
    DeviceArray id(DType::I32, tokens);
    id.repeat(raw(ids));
    Result r{DeviceArray(kBf16, tokens * kHidden), DeviceArray(kF32, kVocab * kHidden)};
    r.d_table.zero();
    cuda::embedding_forward({tokens, kVocab, kHidden, ints(id), table.data(), kBf16, r.y.data(), kBf16}, stream_);
    EmbeddingBackwardArgs b{tokens, kVocab, kHidden, ints(id), r.y.data(), kBf16, r.d_table.data(), {}};
    const std::int64_t bytes = cuda::embedding_backward_workspace_bytes(b, stream_);
    const DeviceArray workspace(DType::U8, bytes);
    b.workspace = {workspace.data(), bytes};
    cuda::embedding_backward(b, stream_);
    finish("embedding");
    EXPECT_TRUE(workspace.untouched());
    return r;
  };
  const Result small = run(kPeriod), large = run(kTokens);
  EXPECT_TRUE(repeats(large.y, small.y));
  expect_multiple(large.d_table, small.d_table, kPeriods, 1e-4, "d_table");
}

TEST_F(LargeLoss, embedding_with_a_table_of_more_than_2_to_the_31) {
  DELTRON_NEED_GIB(16);
  constexpr std::int64_t kHidden = 4096, kPeriod = 251, kVocab = kPeriod * 2090, kTokens = 1000;
  static_assert(kVocab * kHidden > kPast32Bits);
  std::vector<std::int32_t> ids(kTokens);
  for (std::size_t t = 0; t < kTokens; ++t) ids[t] = static_cast<std::int32_t>(kVocab - 1 - static_cast<std::int64_t>(t) * 523);
  const std::vector<double> pattern = TestRandom(3).values(kPeriod * kHidden);
  DeviceArray table(kBf16, kVocab * kHidden), small_table(kBf16, kPeriod * kHidden), id(DType::I32, kTokens), y(kBf16, kTokens * kHidden);
  table.repeat(pattern), small_table.repeat(pattern), id.repeat(raw(ids));
  cuda::embedding_forward({kTokens, kVocab, kHidden, ints(id), table.data(), kBf16, y.data(), kBf16}, stream_);
  finish("embedding");
  for (std::int64_t t = 0; t < kTokens; ++t) {
    ASSERT_TRUE(y.download(t * kHidden, kHidden) == small_table.download(ids[static_cast<std::size_t>(t)] % kPeriod * kHidden, kHidden)) << t;
  }
  table = {};
  DeviceArray d_table(kF32, kVocab * kHidden);
  d_table.zero();
  EmbeddingBackwardArgs b{kTokens, kVocab, kHidden, ints(id), y.data(), kBf16, d_table.data(), {}};
  const std::int64_t bytes = cuda::embedding_backward_workspace_bytes(b, stream_);
  const DeviceArray workspace(DType::U8, bytes);
  b.workspace = {workspace.data(), bytes};
  cuda::embedding_backward(b, stream_);
  finish("embedding backward");
  EXPECT_TRUE(workspace.untouched() && d_table.untouched());
  for (std::int64_t t = 0; t < kTokens; ++t) {  // every id occurs once
    ASSERT_EQ(d_table.values(ids[static_cast<std::size_t>(t)] * kHidden, kHidden), y.values(t * kHidden, kHidden)) << t;
  }
}

// A table of one tensor, on the device.
class TableOfOne {
 public:
  explicit TableOfOne(MultiTensorEntry entry) : entry_(DType::U8, sizeof(MultiTensorEntry)) {
    entry.aligned = multi_tensor_aligned(entry);
    std::vector<char> bytes(sizeof(entry));
    std::memcpy(bytes.data(), &entry, sizeof(entry));
    entry_.repeat(bytes);
    std::vector<MultiTensorChunk> chunks;
    for (std::int64_t begin = 0; begin < entry.count; begin += kNormBlock) {
      chunks.push_back({begin, 0, static_cast<std::int32_t>(std::min(kNormBlock, entry.count - begin))});
    }
    bytes.resize(chunks.size() * sizeof(MultiTensorChunk));
    std::memcpy(bytes.data(), chunks.data(), bytes.size());
    chunks_ = DeviceArray(DType::U8, static_cast<std::int64_t>(bytes.size()));
    chunks_.repeat(bytes);
    count_ = static_cast<std::int64_t>(chunks.size());
  }
  std::int64_t chunks() const { return count_; }
  MultiTensorTable view() const {
    return {reinterpret_cast<const MultiTensorEntry*>(entry_.data()), reinterpret_cast<const MultiTensorChunk*>(chunks_.data()), count_, true, false};
  }

 private:
  DeviceArray entry_, chunks_;
  std::int64_t count_ = 0;
};

TEST_F(LargeLoss, optimizers_of_a_parameter_of_more_than_2_to_the_31) {
  DELTRON_NEED_GIB(44);
  constexpr std::int64_t kPeriod = 1000003, kCount = kPeriod * 2150;
  static_assert(kCount > kPast32Bits);
  struct Result {
    DeviceArray master, m, v, weight;
  };
  const auto run = [&](std::int64_t count, bool adam) {
    DeviceArray grad(kF32, count);
    grad.repeat(TestRandom(4).values(kPeriod));
    Result r{DeviceArray(kF32, count), {}, {}, DeviceArray(kBf16, count)};
    r.master.repeat(TestRandom(5).values(kPeriod));
    MultiTensorEntry entry;
    entry.count = count, entry.master = r.master.data(), entry.grad = grad.data(), entry.weight = r.weight.data();
    if (adam) {
      r.m = DeviceArray(kF32, count), r.v = DeviceArray(kF32, count);
      r.m.repeat(TestRandom(6).values(kPeriod, 0.1)), r.v.repeat(TestRandom(7).values(kPeriod, 0.1, 0.2));
      entry.exp_avg = r.m.data(), entry.exp_avg_sq = r.v.data();
      const TableOfOne table(entry);
      MultiTensorAdamwArgs args;
      args.table = table.view(), args.lr = 1e-2, args.weight_decay = 0.1, args.step = 3;
      cuda::multi_tensor_adamw(args, stream_);
      finish("adamw");
    } else {
      const TableOfOne table(entry);
      MultiTensorSgdArgs args;
      args.table = table.view(), args.lr = 1e-2;
      cuda::multi_tensor_sgd(args, stream_);
      finish("sgd");
    }
    finish("optimizer");
    return r;
  };
  for (const bool adam : {true, false}) {
    const Result small = run(kPeriod, adam), large = run(kCount, adam);
    EXPECT_TRUE(repeats(large.master, small.master)) << adam;
    EXPECT_TRUE(repeats(large.weight, small.weight)) << adam;
    if (!adam) continue;
    EXPECT_TRUE(repeats(large.m, small.m));
    EXPECT_TRUE(repeats(large.v, small.v));
  }
}

TEST_F(LargeLoss, norms_and_sums_of_more_than_2_to_the_31_elements) {
  DELTRON_NEED_GIB(12);
  constexpr std::int64_t kPeriod = 1000003, kPeriods = 2150, kCount = kPeriod * kPeriods;
  std::vector<double> pattern = TestRandom(8).values(kPeriod, 1, 0.25);
  round_to(kF32, pattern);
  double sum = 0, squares = 0;
  for (const double x : pattern) sum += x, squares += x * x;
  DeviceArray x(kF32, kCount);
  x.repeat(pattern);
  const std::int64_t blocks = (kCount + kNormBlock - 1) / kNormBlock;
  DeviceArray partials(DType::F64, blocks), nonfinite(DType::I64, blocks), result(DType::F64, 1), total(DType::F64, 1);
  const auto measure = [&] {
    cuda::squared_norm({kCount, x.data(), kF32, reinterpret_cast<double*>(partials.data()), reinterpret_cast<std::int64_t*>(nonfinite.data())}, stream_);
    cuda::ordered_sum({blocks, reinterpret_cast<const double*>(partials.data()), reinterpret_cast<double*>(result.data())}, stream_);
    cuda::sum({kCount, x.data(), kF32, reinterpret_cast<double*>(total.data())}, stream_);
    finish("reductions");
    std::vector<std::int64_t> counts(static_cast<std::size_t>(blocks));
    const std::vector<char> bytes = nonfinite.download();
    std::memcpy(counts.data(), bytes.data(), bytes.size());
    return counts;
  };
  MultiTensorEntry entry;
  entry.count = kCount, entry.grad = x.data();
  const TableOfOne table(entry);
  ASSERT_EQ(table.chunks(), blocks);
  cuda::multi_tensor_norm({table.view(), reinterpret_cast<double*>(partials.data()), reinterpret_cast<std::int64_t*>(nonfinite.data())}, stream_);
  finish("norm over a table");
  double over_table = 0;
  for (const double partial : partials.values()) over_table += partial;
  EXPECT_NEAR(over_table, kPeriods * squares, 1e-6 * kPeriods * squares);
  for (const std::int64_t count : measure()) ASSERT_EQ(count, 0);
  EXPECT_NEAR(result.values()[0], kPeriods * squares, 1e-6 * kPeriods * squares);
  EXPECT_NEAR(total.values()[0], kPeriods * sum, 1e-6 * kPeriods * sum);
  const float nan = std::nanf("");
  require_cuda(cudaMemcpy(x.at(kCount - 1), &nan, 4, cudaMemcpyHostToDevice), "upload");
  const std::vector<std::int64_t> counts = measure();
  EXPECT_EQ(counts.back(), 1) << "the last element is seen";
  for (std::int64_t i = 0; i + 1 < blocks; ++i) ASSERT_EQ(counts[static_cast<std::size_t>(i)], 0) << i;
  EXPECT_TRUE(std::isnan(total.values()[0]));
}

// C = A B in bf16 by the library, fp32 by the own kernel too: rows of A repeat, so do rows of C.
TEST_F(LargeLoss, products_with_operands_and_results_of_more_than_2_to_the_31) {
  DELTRON_NEED_GIB(24);
  constexpr std::int64_t kPeriod = 251, kPeriods = 2090, kRows = kPeriod * kPeriods, kWide = 4096, kNarrow = 64;
  const std::shared_ptr<cuda::ProductLibrary> products = cuda::make_products();
  stream_.products = products.get();
  const auto multiply = [&](MatmulArgs args) {
    const std::int64_t bytes = cuda::matmul_workspace_bytes(args, stream_);
    const DeviceArray workspace(DType::U8, std::max<std::int64_t>(bytes, 1));
    args.workspace = {workspace.data(), bytes};
    cuda::matmul(args, stream_);
    finish("product");
    EXPECT_TRUE(workspace.untouched());
  };
  const auto product = [&](const DeviceArray& a, std::int64_t k, const DeviceArray& b, std::int64_t n, const DeviceArray& c, std::int64_t m) {
    MatmulArgs args;
    args.m = m, args.n = n, args.k = k, args.a = a.data(), args.a_dtype = args.b_dtype = args.c_dtype = kBf16, args.a_row_stride = k;
    args.b = b.data(), args.b_row_stride = n, args.c = c.data(), args.c_row_stride = n;
    multiply(args);
  };
  const auto expected_row = [](const std::vector<double>& row, const std::vector<double>& b, std::int64_t n) {
    std::vector<double> result(static_cast<std::size_t>(n));
    for (std::size_t k = 0; k < row.size(); ++k) {
      for (std::size_t j = 0; j < result.size(); ++j) result[j] += row[k] * b[k * result.size() + j];
    }
    return result;
  };
  for (const bool wide_result : {true, false}) {
    const std::int64_t k = wide_result ? kNarrow : kWide, n = wide_result ? kWide : kNarrow;
    DeviceArray a(kBf16, kRows * k), b(kBf16, k * n), c(kBf16, kRows * n);
    a.repeat(TestRandom(9).values(kPeriod * k)), b.repeat(TestRandom(10).values(k * n));
    product(a, k, b, n, c, kRows);
    DeviceArray first(kBf16, kPeriod * n);
    first.repeat(c.download(0, kPeriod * n));
    EXPECT_TRUE(repeats(c, first)) << "wide result: " << wide_result;
    for (const std::int64_t row : {std::int64_t{0}, kPeriod - 1, kRows - 1}) {
      EXPECT_LT(error_ratio(c.values(row * n, n), expected_row(a.values(row * k, k), b.values(), n)), 4e-3) << row;
    }
    if (wide_result) continue;
    // The weight gradient: A^T C, its sum over more rows than a block of anything.
    DeviceArray small(kF32, k * n), large(kF32, k * n);
    for (DeviceArray* target : {&small, &large}) {
      MatmulArgs args;
      args.m = k, args.n = n, args.k = target == &small ? kPeriod : kRows, args.a = a.data(), args.a_row_stride = 1, args.a_col_stride = k;
      args.b = c.data(), args.b_row_stride = n, args.a_dtype = args.b_dtype = kBf16, args.c = target->zero().data(), args.c_dtype = kF32;
      args.c_row_stride = n, args.accumulate = true;
      multiply(args);
    }
    expect_multiple(large, small, kPeriods, 1e-3, "weight gradient");
  }
}

// The own kernel has as many rows of blocks as the product needs.
TEST_F(LargeLoss, the_plain_product_takes_millions_of_rows) {
  constexpr std::int64_t kRows = 2200000, kN = 5, kK = 3, kPeriod = 11;
  DeviceArray a(kF32, kRows * kK), b(kF32, kK * kN), c(kF32, kRows * kN), first(kF32, kPeriod * kN);
  a.repeat(TestRandom(11).values(kPeriod * kK)), b.repeat(TestRandom(12).values(kK * kN));
  for (const auto& [rows, target] : {std::pair{kRows, &c}, std::pair{kPeriod, &first}}) {
    MatmulArgs args;
    args.m = rows, args.n = kN, args.k = kK, args.a = a.data(), args.a_row_stride = kK, args.b = b.data(), args.b_row_stride = kN;
    args.c = target->data(), args.c_row_stride = kN;
    const std::int64_t bytes = cuda::matmul_workspace_bytes(args, stream_);
    const DeviceArray workspace(DType::U8, std::max<std::int64_t>(bytes, 1));
    args.workspace = {workspace.data(), bytes};
    cuda::matmul(args, stream_);  // no library in the handle
    finish("product");
  }
  EXPECT_TRUE(repeats(c, first));
}

// Documents of whole tiles: where a document lies among the tiles decides the order of its sums. 320 rows have a factor of five, so that an
// index that wraps meets another row here too.
TEST_F(LargeLoss, attention_over_more_query_elements_than_2_to_the_31) {
  DELTRON_NEED_GIB(48);
  constexpr std::int64_t kPeriod = 320, kPeriods = 1640, kHeads = 32, kKvHeads = 4, kDim = 128, kRow = kHeads * kDim, kKvRow = kKvHeads * kDim;
  struct Result {
    DeviceArray o, lse, dq, dk, dv;
  };
  const auto run = [&](std::int64_t periods) {
    const std::int64_t tokens = kPeriod * periods;
    const auto input = [&](std::int64_t row, std::uint64_t seed) {
      DeviceArray array(kBf16, tokens * row);
      array.repeat(TestRandom(seed).values(kPeriod * row));
      return array;
    };
    const DeviceArray q = input(kRow, 13), k = input(kKvRow, 14), v = input(kKvRow, 15), d_o = input(kRow, 16);
    std::vector<std::int64_t> offsets;
    for (std::int64_t i = 0; i <= periods; ++i) offsets.push_back(i * kPeriod);
    DeviceArray device_offsets(DType::I64, periods + 1);
    std::vector<char> bytes(offsets.size() * 8);
    std::memcpy(bytes.data(), offsets.data(), bytes.size());
    device_offsets.repeat(bytes);
    Result r{DeviceArray(kBf16, tokens * kRow), DeviceArray(kF32, tokens * kHeads), DeviceArray(kBf16, tokens * kRow), DeviceArray(kBf16, tokens * kKvRow),
             DeviceArray(kBf16, tokens * kKvRow)};
    AttentionForwardArgs f;
    f.tokens = tokens, f.query_heads = kHeads, f.kv_heads = kKvHeads, f.dim = kDim, f.dtype = kBf16, f.scale = 1 / std::sqrt(128.0);
    f.documents = {periods, reinterpret_cast<const std::int64_t*>(device_offsets.data()), offsets.data()};
    f.q = {q.data(), 0, kRow, kDim}, f.k = {k.data(), 0, kKvRow, kDim}, f.v = {v.data(), 0, kKvRow, kDim}, f.o = {r.o.data(), 0, kRow, kDim};
    f.log_sum_exp = r.lse.data();
    const std::int64_t needed = cuda::attention_forward_workspace_bytes(f, stream_);
    const DeviceArray workspace(DType::U8, std::max<std::int64_t>(needed, 1));
    f.workspace = {workspace.data(), needed};
    cuda::attention_forward(f, stream_);
    AttentionBackwardArgs b;
    b.tokens = tokens, b.query_heads = kHeads, b.kv_heads = kKvHeads, b.dim = kDim, b.documents = f.documents, b.dtype = kBf16, b.scale = f.scale;
    b.q = f.q, b.k = f.k, b.v = f.v, b.o = {r.o.data(), 0, kRow, kDim}, b.d_o = {d_o.data(), 0, kRow, kDim}, b.log_sum_exp = r.lse.data();
    b.dq = {r.dq.data(), 0, kRow, kDim}, b.dk = {r.dk.data(), 0, kKvRow, kDim}, b.dv = {r.dv.data(), 0, kKvRow, kDim};
    const std::int64_t back = cuda::attention_backward_workspace_bytes(b, stream_);
    const DeviceArray back_workspace(DType::U8, std::max<std::int64_t>(back, 1));
    b.workspace = {back_workspace.data(), back};
    cuda::attention_backward(b, stream_);
    finish("attention");
    EXPECT_TRUE(workspace.untouched() && back_workspace.untouched());
    return r;
  };
  const Result small = run(1), large = run(kPeriods);
  EXPECT_TRUE(repeats(large.o, small.o));
  EXPECT_TRUE(repeats(large.lse, small.lse));
  EXPECT_TRUE(repeats(large.dq, small.dq));
  EXPECT_TRUE(repeats(large.dk, small.dk));
  EXPECT_TRUE(repeats(large.dv, small.dv));
}

}  // namespace
}  // namespace deltron::test
