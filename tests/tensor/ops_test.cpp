// Shape-checked operations: values against plain loops, strided operands, refused shapes, and the version counter of what they write.
#include "src/tensor/ops.h"

#include <functional>

#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::contains;
using test::message_of;
using test::random_tensor;
using test::relative_difference;
using test::small_context;

std::vector<double> plain_product(Context& ctx, const Tensor& a, const Tensor& b) {
  const std::vector<double> x = to_doubles(ctx, a), y = to_doubles(ctx, b);
  const auto M = static_cast<std::size_t>(a.size(0)), K = static_cast<std::size_t>(a.size(1)), N = static_cast<std::size_t>(b.size(1));
  std::vector<double> product(M * N, 0.0);
  for (std::size_t m = 0; m < M; ++m) {
    for (std::size_t n = 0; n < N; ++n) {
      for (std::size_t k = 0; k < K; ++k) product[m * N + n] += x[m * K + k] * y[k * N + n];
    }
  }
  return product;
}

TEST(Ops, matmul_multiplies_views_of_any_layout) {
  Context ctx(small_context(2));
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    const double tolerance = dtype == DType::F64 ? 1e-14 : dtype == DType::F32 ? 1e-6 : 1e-2;
    const Tensor a = random_tensor(ctx, {7, 13}, dtype, 1), b = random_tensor(ctx, {13, 5}, dtype, 2);
    const Tensor at = random_tensor(ctx, {13, 7}, dtype, 3), bt = random_tensor(ctx, {5, 13}, dtype, 4);
    for (const Tensor& left : {a, transposed(at)}) {
      for (const Tensor& right : {b, transposed(bt)}) {
        const Tensor c = Tensor::empty(ctx, {7, 5}, dtype, "c");
        matmul(ctx, left, right, c);
        EXPECT_LE(relative_difference(to_doubles(ctx, c), plain_product(ctx, left, right)), tolerance) << dtype_name(dtype);
      }
    }
    // Slices of wider matrices on all three places, on top of what is there.
    const Tensor wide = random_tensor(ctx, {7, 40}, dtype, 5), target = Tensor::zeros(ctx, {7, 40}, DType::F32, "wide");
    if (dtype == DType::F64) continue;
    fill(ctx, target, 1.0);
    matmul(ctx, wide.slice(1, 3, 13), b, target.slice(1, 20, 5), true);
    std::vector<double> expected(7 * 40, 1.0);
    const std::vector<double> product = plain_product(ctx, wide.slice(1, 3, 13), b);
    for (std::size_t i = 0; i < 35; ++i) expected[i / 5 * 40 + 20 + i % 5] += product[i];
    EXPECT_LE(relative_difference(to_doubles(ctx, target), expected), 1e-6) << dtype_name(dtype);
  }
}

TEST(Ops, matmul_of_nothing_is_zero_or_leaves_the_sum_alone) {
  Context ctx(small_context());
  const Tensor a = Tensor::zeros(ctx, {3, 0}, DType::F32, "a"), b = Tensor::zeros(ctx, {0, 4}, DType::F32, "b");
  const Tensor c = random_tensor(ctx, {3, 4}, DType::F32, 1);
  const std::vector<double> before = to_doubles(ctx, c);
  matmul(ctx, a, b, c, true);
  EXPECT_EQ(to_doubles(ctx, c), before);
  matmul(ctx, a, b, c, false);
  EXPECT_EQ(to_doubles(ctx, c), std::vector<double>(12, 0.0));
}

TEST(Ops, a_row_of_a_product_has_the_same_bits_whatever_the_other_rows_and_the_threads) {
  const auto row_bits = [](int threads, std::int64_t rows, std::int64_t row) {
    Context ctx(small_context(threads));
    const Tensor a = random_tensor(ctx, {300, 37}, DType::F32, 1), b = random_tensor(ctx, {53, 37}, DType::F32, 2);
    const Tensor c = Tensor::empty(ctx, {rows, 53}, DType::F32, "c");
    matmul(ctx, a.slice(0, 200 - row, rows), transposed(b), c);
    return test::bits_of(ctx, c.slice(0, row, 1));
  };
  const auto expected = row_bits(1, 1, 0);
  EXPECT_EQ(row_bits(1, 100, 3), expected);
  EXPECT_EQ(row_bits(2, 257, 200), expected);
  EXPECT_EQ(row_bits(3, 97, 96), expected);
}

TEST(Ops, elementwise_operations_compute_what_they_say) {
  Context ctx(small_context());
  const Tensor a = random_tensor(ctx, {5, 9}, DType::F32, 1), b = random_tensor(ctx, {5, 9}, DType::F32, 2);
  const std::vector<double> x = to_doubles(ctx, a), y = to_doubles(ctx, b);
  const Tensor sum = Tensor::empty(ctx, {5, 9}, DType::F32, "sum");
  add(ctx, a, b, sum);
  for (std::size_t i = 0; i < 45; ++i) EXPECT_EQ(to_doubles(ctx, sum)[i], static_cast<double>(static_cast<float>(x[i]) + static_cast<float>(y[i])));
  const Tensor wide = Tensor::zeros(ctx, {5, 20}, DType::F32, "wide");
  accumulate(ctx, a, wide.slice(1, 4, 9), 0.5);
  accumulate(ctx, a, wide.slice(1, 4, 9), 0.5);
  EXPECT_EQ(to_doubles(ctx, wide.slice(1, 4, 9)), x);
  EXPECT_EQ(to_doubles(ctx, wide.slice(1, 0, 4)), std::vector<double>(20, 0.0));
  EXPECT_EQ(to_doubles(ctx, wide.slice(1, 13, 7)), std::vector<double>(35, 0.0));
  const Tensor narrow = Tensor::empty(ctx, {5, 9}, DType::BF16, "narrow");
  convert(ctx, a, narrow);
  EXPECT_EQ(to_doubles(ctx, narrow), to_doubles(ctx, make_tensor(ctx, {5, 9}, DType::BF16, x, "expected")));
}

TEST(Ops, contiguous_copies_strided_views_of_two_and_three_dimensions_and_nothing_else) {
  Context ctx(small_context());
  const Tensor whole = random_tensor(ctx, {5, 24}, DType::F32, 1);
  EXPECT_TRUE(contiguous(ctx, whole, "c").same_view(whole));
  for (const Tensor& view : {whole.slice(1, 5, 12), whole.slice(1, 5, 12).split_last(3), whole.split_last(4).slice(2, 1, 3)}) {
    const Tensor copy = contiguous(ctx, view, "c");
    EXPECT_TRUE(copy.is_contiguous());
    EXPECT_NE(copy.storage(), whole.storage());
    EXPECT_EQ(to_doubles(ctx, copy), to_doubles(ctx, view));
  }
}

TEST(Ops, shapes_that_do_not_fit_are_refused) {
  Context ctx(small_context());
  const Tensor a = Tensor::zeros(ctx, {2, 3}, DType::F32, "a"), b = Tensor::zeros(ctx, {4, 5}, DType::F32, "b");
  const Tensor c = Tensor::zeros(ctx, {2, 5}, DType::F32, "c"), half = Tensor::zeros(ctx, {2, 3}, DType::BF16, "half");
  EXPECT_TRUE(contains(message_of([&] { matmul(ctx, a, b, c); }), {"[2,3]", "[4,5]", "[2,5]"}));
  EXPECT_TRUE(contains(message_of([&] { matmul(ctx, transposed(b).slice(0, 0, 2), transposed(a), transposed(c)); }), {"product"}));
  EXPECT_TRUE(contains(message_of([&] { add(ctx, a, c, a); }), {"[2,3]", "[2,5]"}));
  EXPECT_TRUE(contains(message_of([&] { add(ctx, a, half, a); }), {"sum"}));
  EXPECT_TRUE(contains(message_of([&] { convert(ctx, a, c); }), {"[2,3]", "[2,5]"}));
  EXPECT_TRUE(contains(message_of([&] { accumulate(ctx, a, c); }), {"[2,3]", "[2,5]"}));
  EXPECT_TRUE(contains(message_of([&] { fill(ctx, transposed(a), 0); }), {"'a'"}));
  EXPECT_TRUE(contains(message_of([&] { matrix_view(transposed(a)); }), {"'a'", "contiguous"}));
}

TEST(Ops, every_write_counts_up_the_version_of_its_target_alone) {
  Context ctx(small_context());
  const Tensor a = random_tensor(ctx, {4, 4}, DType::F32, 1), b = random_tensor(ctx, {4, 4}, DType::F32, 2);
  const std::vector<std::pair<const char*, std::function<void(const Tensor&)>>> writes = {
      {"matmul", [&](const Tensor& y) { matmul(ctx, a, b, y); }},
      {"fill", [&](const Tensor& y) { fill(ctx, y, 1); }},
      {"convert", [&](const Tensor& y) { convert(ctx, a, y); }},
      {"add", [&](const Tensor& y) { add(ctx, a, b, y); }},
      {"accumulate", [&](const Tensor& y) { accumulate(ctx, a, y); }},
      {"copy_from_host", [&](const Tensor& y) { copy_from_host(ctx, y, std::vector<float>(16, 1).data()); }},
      {"from_doubles", [&](const Tensor& y) { from_doubles(ctx, y, std::vector<double>(16, 1)); }},
  };
  for (const auto& [name, write] : writes) {
    const Tensor target = Tensor::zeros(ctx, {4, 4}, DType::F32, "y");
    const std::uint64_t before = target.storage()->version(), reads = a.storage()->version() + b.storage()->version();
    write(target);
    EXPECT_GT(target.storage()->version(), before) << name;
    EXPECT_EQ(a.storage()->version() + b.storage()->version(), reads) << name;
  }
}

}  // namespace
}  // namespace deltron
