// kernels/attention: against the plain reference and finite differences; documents isolated; bits independent of threads.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>
#include <utility>

#include "src/base/thread_pool.h"
#include "tests/support/head_buffer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/reference_attention.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using test::error_ratio;
using test::HeadBuffer;
using test::random_values;
using test::ReferenceAttention;

struct Case {
  DType dtype = DType::F32;
  std::vector<std::int64_t> lengths{37};
  std::int64_t query_heads = 2, kv_heads = 1, dim = 16, gap = 0;
  double drop = 0;
};

void PrintTo(const Case& c, std::ostream* out) {  // test names must not hold the bytes of an object
  *out << dtype_name(c.dtype) << " documents " << c.lengths.size() << " heads " << c.query_heads << "/" << c.kv_heads << " dim "
       << c.dim;
}

// One problem with its inputs; every run uses fresh output buffers and a workspace filled with NaN bits.
struct Problem {
  explicit Problem(const Case& wanted) : c(wanted) {
    reference.query_heads = c.query_heads;
    reference.kv_heads = c.kv_heads;
    reference.dim = c.dim;
    reference.scale = 1 / std::sqrt(static_cast<double>(c.dim));
    reference.drop_probability = c.drop;
    reference.key = rng_key(RngSite{5, 3, kRngSiteAttentionDropout});
    reference.cu_seqlens = {0};
    for (std::int64_t length : c.lengths) {
      for (std::int64_t i = 0; i < length; ++i) {
        reference.token_sample.push_back(static_cast<std::int64_t>(reference.cu_seqlens.size()) * 7'000'000'000);
        reference.token_offset.push_back(static_cast<std::int32_t>(i + 11));
      }
      reference.cu_seqlens.push_back(reference.cu_seqlens.back() + length);
    }
    tokens = reference.cu_seqlens.back();
    q = random_values(c.dtype, tokens * c.query_heads * c.dim, 1);
    k = random_values(c.dtype, tokens * c.kv_heads * c.dim, 2);
    v = random_values(c.dtype, tokens * c.kv_heads * c.dim, 3);
    d_o = random_values(c.dtype, tokens * c.query_heads * c.dim, 4);
  }

  struct Result {
    std::vector<double> o, log_sum_exp, dq, dk, dv;
    bool guards_intact = true;
  };
  Result run(int threads, bool backward = true) const {
    ThreadPool pool(threads, false);
    const StreamHandle stream{DeviceKind::Cpu, nullptr, &pool};
    const auto buffer = [&](std::int64_t heads) { return HeadBuffer(c.dtype, tokens, heads, c.dim, c.gap); };
    const HeadBuffer bq = buffer(c.query_heads).set(q), bk = buffer(c.kv_heads).set(k), bv = buffer(c.kv_heads).set(v);
    const HeadBuffer bdo = buffer(c.query_heads).set(d_o);
    HeadBuffer o = buffer(c.query_heads), dq = buffer(c.query_heads), dk = buffer(c.kv_heads), dv = buffer(c.kv_heads);
    HeadBuffer lse(compute_dtype(c.dtype), tokens, c.query_heads, 1, 0);
    kernels::AttentionForwardArgs f;
    f.tokens = tokens, f.query_heads = c.query_heads, f.kv_heads = c.kv_heads, f.dim = c.dim;
    f.documents = {static_cast<std::int64_t>(c.lengths.size()), reference.cu_seqlens.data()};
    f.dtype = c.dtype, f.scale = reference.scale;
    f.q = bq.view(), f.k = bk.view(), f.v = bv.view(), f.o = o.view();
    f.log_sum_exp = lse.view().data;
    f.rng = {reference.key, reference.token_sample.data(), reference.token_offset.data(), c.drop};
    std::vector<unsigned char> space(static_cast<std::size_t>(under_test::attention_forward_workspace_bytes(f, stream)), 0xff);
    f.workspace = {space.data(), static_cast<std::int64_t>(space.size())};
    under_test::attention_forward(f, stream);
    Result r{o.get(), lse.get(), {}, {}, {}, o.guards_intact() && lse.guards_intact()};
    if (!backward) return r;
    kernels::AttentionBackwardArgs b;
    b.tokens = tokens, b.query_heads = c.query_heads, b.kv_heads = c.kv_heads, b.dim = c.dim;
    b.documents = f.documents, b.dtype = c.dtype, b.scale = f.scale, b.rng = f.rng;
    b.q = f.q, b.k = f.k, b.v = f.v, b.o = std::as_const(o).view(), b.d_o = bdo.view();
    b.log_sum_exp = f.log_sum_exp;
    b.dq = dq.view(), b.dk = dk.view(), b.dv = dv.view();
    space.assign(static_cast<std::size_t>(under_test::attention_backward_workspace_bytes(b, stream)), 0xff);
    b.workspace = {space.data(), static_cast<std::int64_t>(space.size())};
    under_test::attention_backward(b, stream);
    r.dq = dq.get(), r.dk = dk.get(), r.dv = dv.get();
    r.guards_intact = r.guards_intact && dq.guards_intact() && dk.guards_intact() && dv.guards_intact();
    return r;
  }

  Case c;
  ReferenceAttention reference;
  std::int64_t tokens = 0;
  std::vector<double> q, k, v, d_o;
};

void expect_same_bits(const Problem::Result& a, const Problem::Result& b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.log_sum_exp, b.log_sum_exp);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = [] {
    std::vector<Case> all;
    for (DType dtype : {DType::F32, DType::F64, DType::BF16}) {
      all.push_back({dtype, {1}, 1, 1, 1, 0, 0});
      all.push_back({dtype, {37, 51, 40}, 4, 1, 32, 0, 0});
      all.push_back({dtype, {37, 0, 51, 1, 40}, 4, 2, 17, 5, 0});          // odd dim, strided, empty and one-token documents
      all.push_back({dtype, {64, 128, 65, 63, 127, 129}, 2, 2, 8, 3, 0});  // borders of blocks
      all.push_back({dtype, {300}, 4, 2, 64, 16, 0});                      // one long document: split over threads
      all.push_back({dtype, {16, 32, 33, 15, 17, 31}, 3, 1, 100, 1, 0});
      all.push_back({dtype, {70, 0, 130}, 4, 2, 24, 1, 0.3});
    }
    return all;
  }();
  return list;
}

class Attention : public ::testing::TestWithParam<Case> {};

TEST_P(Attention, equals_the_reference_forward_and_backward) {
  const Problem problem(GetParam());
  const auto expected = problem.reference.forward(problem.q, problem.k, problem.v);
  const auto gradients = problem.reference.backward(problem.q, problem.k, problem.v, problem.d_o);
  const Problem::Result ours = problem.run(2);
  EXPECT_TRUE(ours.guards_intact);
  const DType dtype = GetParam().dtype;
  const double limit = dtype == DType::F64 ? 1e-13 : dtype == DType::F32 ? 2e-6 : 4e-3;  // bf16: rounding of the results
  EXPECT_LT(error_ratio(ours.o, expected.o), limit);
  EXPECT_LT(error_ratio(ours.log_sum_exp, expected.log_sum_exp), dtype == DType::F64 ? 1e-13 : 2e-6);
  // bf16: D comes from the stored o, as the definition of the backward has it.
  const double gradient_limit = dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 5e-6 : 8e-3;
  EXPECT_LT(error_ratio(ours.dv, gradients.dv), gradient_limit);
  if (problem.tokens == 1) return;  // a single key: dq and dk are zero, ratios mean nothing
  EXPECT_LT(error_ratio(ours.dq, gradients.dq), gradient_limit);
  EXPECT_LT(error_ratio(ours.dk, gradients.dk), gradient_limit);
}

TEST_P(Attention, bits_depend_neither_on_the_thread_count_nor_on_the_run) {
  const Problem problem(GetParam());
  const Problem::Result one = problem.run(1);
  expect_same_bits(one, problem.run(1));
  expect_same_bits(one, problem.run(2));
  expect_same_bits(one, problem.run(3));
  expect_same_bits(one, problem.run(7));
}

INSTANTIATE_TEST_SUITE_P(cases, Attention, ::testing::ValuesIn(cases()), [](const ::testing::TestParamInfo<Case>& chosen) {
  return std::string(dtype_name(chosen.param.dtype)) + "_" + std::to_string(chosen.index);
});

// sum(o * d_o), whose gradients are checked.
double objective(const Problem& problem) {
  const std::vector<double> o = problem.run(1, false).o;
  double sum = 0;
  for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * problem.d_o[i];
  return sum;
}

TEST(AttentionGradients, agree_with_central_differences) {
  for (double drop : {0.0, 0.4}) {
    Problem problem({DType::F64, {5, 0, 1, 67}, 4, 2, 3, 1, drop});
    const Problem::Result ours = problem.run(2);
    const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient, const char* name) {
      for (std::size_t i = 0; i < values.size(); i += 11) {
        const double kept = values[i], step = 1e-5;
        values[i] = kept + step;
        const double above = objective(problem);
        values[i] = kept - step;
        const double below = objective(problem);
        values[i] = kept;
        EXPECT_NEAR((above - below) / (2 * step), gradient[i], 2e-8) << name << "[" << i << "] drop " << drop;
      }
    };
    check(problem.q, ours.dq, "q");
    check(problem.k, ours.dk, "k");
    check(problem.v, ours.dv, "v");
  }
}

TEST(AttentionDocuments, change_no_bit_of_each_other) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    const Problem before({dtype, {37, 80, 40}, 4, 2, 16, 0, 0});
    Problem after = before;
    const std::int64_t begin = 37, end = 117;
    for (std::vector<double>* x : {&after.q, &after.d_o}) std::fill(x->begin() + begin * 64, x->begin() + end * 64, 3.0);
    for (std::vector<double>* x : {&after.k, &after.v}) std::fill(x->begin() + begin * 32, x->begin() + end * 32, -2.0);
    const Problem::Result a = before.run(2), b = after.run(2);
    std::int64_t changed = 0;
    for (const auto& [x, y, width] : {std::tuple{&a.o, &b.o, 64}, std::tuple{&a.dq, &b.dq, 64}, std::tuple{&a.dk, &b.dk, 32},
                                      std::tuple{&a.dv, &b.dv, 32}, std::tuple{&a.log_sum_exp, &b.log_sum_exp, 4}}) {
      for (std::size_t i = 0; i < x->size(); ++i) {
        const std::int64_t token = static_cast<std::int64_t>(i) / width;
        if (token >= begin && token < end) {
          changed += (*x)[i] != (*y)[i] ? 1 : 0;
        } else {
          ASSERT_EQ((*x)[i], (*y)[i]) << "token " << token;
        }
      }
    }
    EXPECT_GT(changed, 1000);  // the change itself was seen
  }
}

TEST(AttentionDocuments, future_tokens_change_no_bit_of_earlier_outputs) {
  const Problem before({DType::F32, {200}, 2, 1, 16, 0, 0});
  Problem after = before;
  for (std::int64_t i = 100 * 16; i < 200 * 16; ++i) after.k[i] = after.v[i] = 9.0;
  const Problem::Result a = before.run(2, false), b = after.run(2, false);
  EXPECT_EQ(std::vector<double>(a.o.begin(), a.o.begin() + 100 * 32), std::vector<double>(b.o.begin(), b.o.begin() + 100 * 32));
  EXPECT_NE(a.o, b.o);
}

TEST(AttentionDropout, drops_the_asked_share_and_keeps_the_mean) {
  Problem problem({DType::F32, {256}, 2, 1, 1, 0, 0.25});
  std::fill(problem.v.begin(), problem.v.end(), 1.0);  // o = sum of kept probabilities / (1-p)
  const std::vector<double> o = problem.run(2, false).o;
  double mean = 0;
  for (double value : o) mean += value / static_cast<double>(o.size());
  EXPECT_NEAR(mean, 1.0, 0.02);
  EXPECT_NE(o[300], 1.0);
}

TEST(AttentionNumbers, a_nan_in_a_key_reaches_every_query_that_sees_it) {
  Problem problem({DType::F32, {100}, 1, 1, 16, 0, 0});
  problem.k[50 * 16 + 3] = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> o = problem.run(1, false).o;
  for (std::int64_t token = 0; token < 100; ++token) EXPECT_EQ(std::isnan(o[token * 16]), token >= 50) << token;
}

class AttentionTargets : public test::KernelTest {};

TEST_P(AttentionTargets, every_instruction_set_agrees_with_the_reference) {
  for (DType dtype : {DType::F32, DType::F64, DType::BF16}) {
    const Problem problem({dtype, {37, 130}, 4, 2, 20, 1, 0.2});
    const auto expected = problem.reference.forward(problem.q, problem.k, problem.v);
    const auto gradients = problem.reference.backward(problem.q, problem.k, problem.v, problem.d_o);
    const Problem::Result ours = problem.run(2);
    const double limit = dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 5e-6 : 8e-3;
    EXPECT_LT(error_ratio(ours.o, expected.o), limit);
    EXPECT_LT(error_ratio(ours.dq, gradients.dq), limit);
    EXPECT_LT(error_ratio(ours.dk, gradients.dk), limit);
    EXPECT_LT(error_ratio(ours.dv, gradients.dv), limit);
  }
}
DELTRON_EVERY_TARGET(AttentionTargets);

TEST(AttentionNumbers, large_scores_do_not_overflow) {
  Problem problem({DType::F32, {90}, 1, 1, 16, 0, 0});
  for (double& value : problem.q) value *= 300;
  const auto expected = problem.reference.forward(problem.q, problem.k, problem.v);
  EXPECT_LT(error_ratio(problem.run(1).o, expected.o), 5e-4);
}

}  // namespace
}  // namespace deltron
