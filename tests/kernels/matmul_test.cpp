// Matrix products against a plain double form, and the promises on bits: threads, row subsets, repetition.
#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/cpu/blis_gemm.h"
#include "kernels/isa.h"
#include "tests/support/kernel_test.h"
#include "tests/support/reference_matmul.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using namespace test;

// BLIS takes its kernels once a process, so that each target's are seen where every test is its own process, as under ctest.
class Matmul : public KernelTest {};

// a [m,k] and b [k,n], each stored row-major or transposed; c [m,n] with a gap after its rows.
template <class A, class B, class C>
struct Case {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, accumulate;
  Guarded<A> a;
  Guarded<B> b;
  Guarded<C> c;
  Case(std::int64_t rows, std::int64_t cols, std::int64_t depth, bool at, bool bt, bool add)
      : m(rows), n(cols), k(depth), a_transposed(at), b_transposed(bt), accumulate(add),
        a(at ? depth : rows, 1, at ? rows : depth, 3), b(bt ? cols : depth, 1, bt ? depth : cols, 1), c(rows, 1, cols, 5) {
    a.fill([&](std::int64_t i) { return noise(1, at ? i % m * k + i / m : i); });
    b.fill([&](std::int64_t i) { return noise(2, bt ? i % k * n + i / k : i); });
    if (accumulate) c.fill([](std::int64_t i) { return noise(3, i); });  // else NaN stays in c: it must not be read
  }
  kernels::MatmulArgs args() {
    kernels::MatmulArgs result;
    result.m = m;
    result.n = n;
    result.k = k;
    result.a = a.data();
    result.a_dtype = kDTypeOf<A>;
    result.a_row_stride = a_transposed ? 1 : a.row_stride();
    result.a_col_stride = a_transposed ? a.row_stride() : 1;
    result.b = b.data();
    result.b_dtype = kDTypeOf<B>;
    result.b_row_stride = b_transposed ? 1 : b.row_stride();
    result.b_col_stride = b_transposed ? b.row_stride() : 1;
    result.c = c.data();
    result.c_dtype = kDTypeOf<C>;
    result.c_row_stride = c.row_stride();
    result.accumulate = accumulate;
    return result;
  }
  void run(kernels::MatmulArgs with, const StreamHandle& stream) {
    if (kOnCuda) {
      std::vector<char> space(static_cast<std::size_t>(under_test::matmul_workspace_bytes(with, stream)));
      with.workspace = {space.data(), static_cast<std::int64_t>(space.size())};
      return under_test::matmul(with, stream);
    }
    Guarded<float> workspace(1, 1, under_test::matmul_workspace_bytes(with, stream) / 4);
    with.workspace = {workspace.data(), workspace.count() * 4};
    under_test::matmul(with, stream);
    EXPECT_TRUE(workspace.untouched());
  }
  std::vector<double> reference() const {
    std::vector<double> rows(static_cast<std::size_t>(m * k)), cols(static_cast<std::size_t>(k * n));
    for (std::int64_t i = 0; i < m * k; ++i) rows[static_cast<std::size_t>(i)] = a.get(a_transposed ? i % k * m + i / k : i);
    for (std::int64_t i = 0; i < k * n; ++i) cols[static_cast<std::size_t>(i)] = b.get(b_transposed ? i % n * k + i / n : i);
    return reference_matmul(rows, cols, m, n, k);
  }
};

template <class A, class B, class C>
void expect_agreement(std::int64_t m, std::int64_t n, std::int64_t k) {
  ThreadPool pool(2, false);
  StreamHandle stream;
  stream.pool = &pool;
  for (int form = 0; form < 8; ++form) {
    Case<A, B, C> product(m, n, k, form & 1, form & 2, form & 4);
    std::vector<double> want = product.reference();
    if (product.accumulate) {
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += product.c.get(static_cast<std::int64_t>(i));
    }
    product.run(product.args(), stream);
    SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k << " form " << form);
    expect_close<C>(product.c.values(), want, "c", 1 + std::sqrt(static_cast<double>(k)) / 4);
    EXPECT_TRUE(product.c.untouched());
    if (testing::Test::HasFatalFailure()) return;
  }
}

const std::int64_t kShapes[][3] = {{1, 1, 1},   {3, 17, 5},    {17, 3, 63},    {65, 63, 64},   {1, 65, 130},
                                   {130, 1, 9}, {13, 33, 300}, {40, 40, 2500}, {400, 530, 40}, {390, 33, 1030}};

TEST_P(Matmul, fp32_agrees_with_the_reference_in_every_layout) {
  for (const auto& s : kShapes) expect_agreement<float, float, float>(s[0], s[1], s[2]);
}
TEST_P(Matmul, fp64_agrees_with_the_reference_in_every_layout) {
  for (const auto& s : kShapes) expect_agreement<double, double, double>(s[0], s[1], s[2]);
}
TEST_P(Matmul, bf16_operands_and_results_agree_with_the_reference_in_every_layout) {
  for (const auto& s : kShapes) {
    expect_agreement<bfloat16, bfloat16, bfloat16>(s[0], s[1], s[2]);
    expect_agreement<bfloat16, bfloat16, float>(s[0], s[1], s[2]);
    expect_agreement<bfloat16, float, bfloat16>(s[0], s[1], s[2]);
    expect_agreement<float, bfloat16, float>(s[0], s[1], s[2]);
  }
}

// The shapes of training: activations by weights, gradients by transposed weights, weight gradients.
template <class A, class C>
void expect_thread_independence() {
  for (const auto& shape : {std::vector<std::int64_t>{517, 136, 128, 0, 0}, {517, 128, 384, 0, 1}, {128, 384, 1500, 1, 0}, {96, 520, 2100, 1, 0}}) {
    expect_same_bits([&](const StreamHandle& stream) {
      Case<A, A, C> product(shape[0], shape[1], shape[2], shape[3] == 1, shape[4] == 1, true);
      product.run(product.args(), stream);
      return product.c.bytes();
    });
  }
}
TEST_P(Matmul, bits_depend_neither_on_threads_nor_on_the_run) {
  expect_thread_independence<float, float>();
  expect_thread_independence<double, double>();
  expect_thread_independence<bfloat16, float>();
  expect_thread_independence<bfloat16, bfloat16>();
}

#if !DELTRON_TEST_ON_CUDA  // promises of the CPU's products alone
// Any run of rows, multiplied alone, has the bits it has inside the whole.
template <class A, class C>
void expect_row_independence(std::int64_t n, std::int64_t k, bool b_transposed) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  const std::int64_t m = 61;
  Case<A, A, C> whole(m, n, k, false, b_transposed, false);
  whole.run(whole.args(), stream);
  const std::vector<unsigned char> want = whole.c.bytes();
  const std::int64_t row_bytes = n * static_cast<std::int64_t>(sizeof(C));
  for (const std::int64_t begin : {0, 1, 5, 12, 31, 60}) {
    for (const std::int64_t count : {1, 2, 3, 7, 12, 16, 30, 61}) {
      if (begin + count > m) continue;
      Case<A, A, C> part(m, n, k, false, b_transposed, false);
      kernels::MatmulArgs args = part.args();
      args.m = count;
      args.a = part.a.data() + begin * args.a_row_stride;
      args.c = part.c.data() + begin * args.c_row_stride;
      part.run(args, stream);
      const std::vector<unsigned char> got = part.c.bytes();
      ASSERT_TRUE(std::equal(got.begin() + begin * row_bytes, got.begin() + (begin + count) * row_bytes, want.begin() + begin * row_bytes))
          << "rows " << begin << " to " << begin + count << " of n " << n << ", k " << k;
    }
  }
}
TEST_P(Matmul, bits_of_a_row_do_not_depend_on_the_other_rows) {
  for (const bool transposed : {false, true}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{128, 128}, {136, 128}, {33, 700}, {1, 64}, {65, 1}}) {
      expect_row_independence<float, float>(n, k, transposed);
      expect_row_independence<double, double>(n, k, transposed);
      expect_row_independence<bfloat16, bfloat16>(n, k, transposed);
    }
  }
}

// The same for columns: the cut over N may move with the thread count.
TEST_P(Matmul, bits_of_a_column_do_not_depend_on_the_other_columns) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<float, float, float> whole(70, 200, 300, true, false, false);
  whole.run(whole.args(), stream);
  for (const std::int64_t begin : {0, 1, 32, 96, 199}) {
    for (const std::int64_t count : {1, 2, 16, 33, 104}) {
      if (begin + count > 200) continue;
      Case<float, float, float> part(70, 200, 300, true, false, false);
      kernels::MatmulArgs args = part.args();
      args.n = count;
      args.b = part.b.data() + begin;
      args.c = part.c.data() + begin;
      part.run(args, stream);
      for (std::int64_t row = 0; row < 70; ++row) {
        for (std::int64_t col = begin; col < begin + count; ++col) {
          ASSERT_EQ(part.c.get(row * 200 + col), whole.c.get(row * 200 + col)) << "row " << row << ", column " << col;
        }
      }
    }
  }
}

#endif

TEST_P(Matmul, an_empty_inner_dimension_gives_zeros_or_leaves_c) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const bool accumulate : {false, true}) {
      Case<float, float, float> product(5, 7, 1, false, false, accumulate);
      const auto before = product.c.values();
      kernels::MatmulArgs args = product.args();
      args.k = 0;
      args.a_dtype = args.b_dtype = dtype;
      product.run(args, stream);
      for (std::int64_t i = 0; i < 35; ++i) ASSERT_EQ(product.c.get(i), accumulate ? before[static_cast<std::size_t>(i)] : 0.0);
      EXPECT_TRUE(product.c.untouched());
    }
  }
}

TEST_P(Matmul, mixed_fp64_is_refused) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<double, double, double> product(2, 2, 2, false, false, false);
  kernels::MatmulArgs args = product.args();
  args.c_dtype = DType::F32;
  EXPECT_THROW(product.run(args, stream), Error);
}

#if !DELTRON_TEST_ON_CUDA
TEST(MatmulLibrary, blis_runs_the_kernels_of_the_chosen_instruction_set) {
  const std::string isa = kernels::cpu::instruction_set(), blis = kernels::cpu::blis_kernels();
  if (isa == "avx3") {
    EXPECT_EQ(blis, "skx");
  } else if (isa == "avx2") {
    EXPECT_EQ(blis, "haswell");
  } else {
    EXPECT_FALSE(blis.empty());
  }
}

#endif

DELTRON_EVERY_TARGET(Matmul);

}  // namespace
}  // namespace deltron
