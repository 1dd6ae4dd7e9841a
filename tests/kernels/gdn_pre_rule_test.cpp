// The fused preparation before the rule: against the double references of its parts, for every dtype, odd sizes and strided rows; the
// rounding that it promises; nothing written beside its outputs; the same bits with any number of threads.
#include <array>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/gdn_pre_rule.h"
#include "src/base/thread_pool.h"
#include "tests/support/compare.h"
#include "tests/support/reference_gdn_layer.h"
#include "tests/support/strided.h"
#include "tests/support/under_test.h"

namespace deltron::test {
namespace {

using namespace deltron::kernels;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// fp16 is a type of the kernels on cuda alone.
const std::vector<DType> kDTypes = kOnCuda ? std::vector<DType>{DType::F32, DType::F64, DType::BF16, DType::F16}
                                           : std::vector<DType>{DType::F32, DType::F64, DType::BF16};

struct Problem {
  std::int64_t Hk = 1, Hv = 2, K = 5, V = 3, kernel = 4;
  PreRuleGates gates = PreRuleGates::Heads;
  bool neg_eigval = false;
  std::vector<std::int64_t> offsets;
  Values qkv, raw, conv, A_log, dt_bias, d_prepared, d_decay, d_strength, d_write;

  bool by_head() const { return gates == PreRuleGates::Heads; }
  std::int64_t tokens() const { return offsets.back(); }
  std::int64_t dq() const { return Hk * K; }
  std::int64_t dv() const { return Hv * V; }
  std::int64_t channels() const { return 2 * dq() + dv(); }
  std::int64_t n() const { return by_head() ? Hv : dq(); }  // gates of a token
  std::int64_t raw_width() const { return by_head() ? 2 * Hv : 2 * dq() + dv(); }

  void draw(std::uint64_t seed) {
    TestRandom random(seed);
    const std::int64_t T = tokens();
    qkv = random.values(T * channels(), 2), raw = random.values(T * raw_width(), 3), conv = random.values(channels() * kernel);
    A_log = random.values(by_head() ? Hv : Hk), dt_bias = random.values(n());
    d_prepared = random.values(T * channels()), d_decay = random.values(T * n()), d_strength = random.values(T * n());
    d_write = random.values(T * dv());
    if (T > 0) raw[by_head() ? Hv : 0] = 40;  // beyond softplus's linear border
  }
};

Problem sized(std::int64_t Hk, std::int64_t Hv, std::int64_t K, std::int64_t V, std::int64_t kernel) {
  Problem p;
  p.Hk = Hk, p.Hv = Hv, p.K = K, p.V = V, p.kernel = kernel;
  return p;
}

struct Outcome {
  Values prepared, decay, strength, write, d_qkv, d_raw, d_conv, d_A_log, d_dt_bias;
  std::vector<char> bits;
  std::int64_t touched = 0;
};

// In double, part by part: convolution and SiLU, norm, gates.
Outcome reference(const Problem& p) {
  Outcome r;
  const std::int64_t T = p.tokens(), C = p.channels(), n = p.n();
  const ConvReference conv = reference_causal_conv1d(p.offsets, C, p.kernel, true, p.qkv, p.conv, Values(p.qkv.size(), 0.0));
  r.prepared = conv.y;
  Values through = p.d_prepared;  // gradient of SiLU's output
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t h = 0; h < 2 * p.Hk; ++h) {
      const auto at = conv.y.begin() + t * C + h * p.K;
      const auto dy = p.d_prepared.begin() + t * C + h * p.K;
      const L2NormReference norm = reference_l2_norm(p.K, 1e-6, Values(at, at + p.K), Values(dy, dy + p.K));
      std::copy(norm.y.begin(), norm.y.end(), r.prepared.begin() + t * C + h * p.K);
      std::copy(norm.dx.begin(), norm.dx.end(), through.begin() + t * C + h * p.K);
    }
  }
  const ConvReference back = reference_causal_conv1d(p.offsets, C, p.kernel, true, p.qkv, p.conv, through);
  r.d_qkv = back.dx, r.d_conv = back.dweight;
  r.decay.resize(T * n), r.strength.resize(T * n), r.write.resize(p.by_head() ? 0 : T * p.dv()), r.d_raw.resize(p.raw.size());
  r.d_A_log.resize(p.A_log.size()), r.d_dt_bias.resize(p.dt_bias.size());
  const double top = p.neg_eigval ? 2 : 1;
  for (std::int64_t t = 0; t < T; ++t) {
    const std::int64_t row = t * p.raw_width(), at_decay = row + (p.by_head() ? p.Hv : 0), at_strength = row + (p.by_head() ? 0 : n);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t rate_at = p.by_head() ? i : i / p.K;
      const double rate = std::exp(p.A_log[rate_at]), x = p.raw[at_decay + i] + p.dt_bias[i];
      const double g = -rate * (x > 20 ? x : std::log1p(std::exp(x))), dg = p.d_decay[t * n + i];
      const double df = -rate * (x > 20 ? 1 : reference_sigmoid(x)) * dg, s = reference_sigmoid(p.raw[at_strength + i]);
      r.decay[t * n + i] = g, r.d_raw[at_decay + i] = df;
      r.d_dt_bias[i] += df, r.d_A_log[rate_at] += g * dg;
      r.strength[t * n + i] = top * s, r.d_raw[at_strength + i] = top * s * (1 - s) * p.d_strength[t * n + i];
    }
    for (std::int64_t i = 0; i < (p.by_head() ? 0 : p.dv()); ++i) {
      const double s = reference_sigmoid(p.raw[row + 2 * n + i]);
      r.write[t * p.dv() + i] = s, r.d_raw[row + 2 * n + i] = s * (1 - s) * p.d_write[t * p.dv() + i];
    }
  }
  return r;
}

template <class Args>
void fill(Args& a, const Problem& p, DType dtype, DType conv_dtype) {
  a.tokens = p.tokens(), a.key_heads = p.Hk, a.value_heads = p.Hv, a.key_dim = p.K, a.value_dim = p.V, a.kernel = p.kernel;
  a.gates = p.gates, a.documents = {static_cast<std::int64_t>(p.offsets.size()) - 1, p.offsets.data(), nullptr};
  a.dtype = dtype, a.conv_weight_dtype = conv_dtype, a.allow_neg_eigval = p.neg_eigval;
}

Outcome run(const Problem& p, DType dtype, DType conv_dtype, int threads) {
  ThreadPool pool(threads, false);
  StreamHandle stream;
  stream.pool = &pool;
  const DType compute = compute_dtype(dtype);
  const std::int64_t T = p.tokens();
  const auto rows = [&](DType type, std::int64_t width, double guard, std::int64_t after = 0) { return Strided(type, T, 1, width, guard, 0, after); };
  Strided qkv = rows(dtype, p.channels(), kNan, 3), raw = rows(dtype, p.raw_width(), kNan, 7), conv(conv_dtype, p.channels(), 1, p.kernel, kNan);
  Strided A_log(compute, 1, 1, static_cast<std::int64_t>(p.A_log.size()), kNan), dt_bias(compute, 1, 1, p.n(), kNan);
  Strided prepared = rows(dtype, p.channels(), -7, 5), decay = rows(compute, p.n(), -7), strength = rows(dtype, p.n(), -7),
          write = rows(dtype, p.dv(), -7);
  Strided d_prepared = rows(dtype, p.channels(), kNan, 1), d_decay = rows(compute, p.n(), kNan), d_strength = rows(dtype, p.n(), kNan),
          d_write = rows(dtype, p.dv(), kNan), d_qkv = rows(dtype, p.channels(), -7, 2), d_raw = rows(dtype, p.raw_width(), -7, 4);
  Strided d_conv(compute, p.channels(), 1, p.kernel, -7), d_A_log(compute, 1, 1, static_cast<std::int64_t>(p.A_log.size()), -7),
      d_dt_bias(compute, 1, 1, p.n(), -7);
  qkv.write(p.qkv), raw.write(p.raw), conv.write(p.conv), A_log.write(p.A_log), dt_bias.write(p.dt_bias);
  d_prepared.write(p.d_prepared), d_decay.write(p.d_decay), d_strength.write(p.d_strength), d_write.write(p.d_write);
  d_conv.write(Values(p.conv.size(), 0.5)), d_A_log.write(Values(p.A_log.size(), 0.5)), d_dt_bias.write(Values(p.dt_bias.size(), 0.5));
  std::int64_t touched = 0;
  const auto with_workspace = [&](auto& args, std::int64_t bytes, const auto& launch) {
    std::vector<char> memory(static_cast<std::size_t>(bytes) + 64, '\xff');
    args.workspace = Workspace{memory.data(), bytes};
    launch();
    for (std::size_t i = static_cast<std::size_t>(bytes); i < memory.size(); ++i) touched += memory[i] != '\xff';
  };
  GdnPreRuleForwardArgs f;
  fill(f, p, dtype, conv_dtype);
  f.qkv = qkv.matrix_view(), f.raw = raw.matrix_view(), f.conv_weight = conv.data(), f.A_log = A_log.data(), f.dt_bias = dt_bias.data();
  f.prepared = prepared.mutable_matrix_view(), f.decay = decay.data(), f.strength = strength.data(), f.write = write.data();
  with_workspace(f, under_test::gdn_pre_rule_forward_workspace_bytes(f, stream), [&] { under_test::gdn_pre_rule_forward(f, stream); });
  GdnPreRuleBackwardArgs b;
  fill(b, p, dtype, conv_dtype);
  b.qkv = f.qkv, b.raw = f.raw, b.conv_weight = f.conv_weight, b.A_log = f.A_log, b.dt_bias = f.dt_bias;
  b.d_prepared = d_prepared.matrix_view(), b.d_decay = d_decay.data(), b.d_strength = d_strength.data(), b.d_write = d_write.data();
  b.d_qkv = d_qkv.mutable_matrix_view(), b.d_raw = d_raw.mutable_matrix_view();
  b.d_conv_weight = d_conv.data(), b.d_A_log = d_A_log.data(), b.d_dt_bias = d_dt_bias.data();
  with_workspace(b, under_test::gdn_pre_rule_backward_workspace_bytes(b, stream), [&] { under_test::gdn_pre_rule_backward(b, stream); });
  Outcome o{prepared.read(), decay.read(), strength.read(), p.by_head() ? Values{} : write.read(), d_qkv.read(), d_raw.read(),
            d_conv.read(), d_A_log.read(), d_dt_bias.read(), {}, touched};
  for (Values* sums : {&o.d_conv, &o.d_A_log, &o.d_dt_bias}) {
    for (double& value : *sums) value -= 0.5;
  }
  for (const Strided* each : {&qkv, &raw, &prepared, &decay, &strength, &write, &d_prepared, &d_qkv, &d_raw, &d_conv, &d_A_log, &d_dt_bias})
    o.touched += each->touched();
  for (const Strided* each : {&prepared, &decay, &strength, &d_qkv, &d_raw, &d_conv, &d_A_log, &d_dt_bias})
    o.bits.insert(o.bits.end(), each->bytes().begin(), each->bytes().end());
  return o;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  std::uint64_t seed = 7;
  for (const PreRuleGates gates : {PreRuleGates::Heads, PreRuleGates::Channels}) {
    for (const auto& [Hk, Hv, K, V, kernel] : std::vector<std::array<std::int64_t, 5>>{{1, 2, 5, 3, 4}, {2, 4, 32, 16, 1}, {3, 3, 19, 40, 3}}) {
      Problem p = sized(Hk, Hv, K, V, kernel);
      p.gates = gates;
      p.neg_eigval = kernel == 3;
      p.offsets = {0, 1, 1, 3, 131, 270};  // shorter than the kernel, empty, over the border of a block of tokens
      p.draw(++seed);
      all.push_back(p);
    }
  }
  // Sizes of the streaming kernels on cuda: heads that fill a group of lanes, that leave some idle, tiles that end early, strips that end in
  // the middle of a step, documents at every place of one.
  for (const auto& [Hk, Hv, K, V] : std::vector<std::array<std::int64_t, 4>>{{1, 2, 64, 16}, {3, 3, 24, 40}, {1, 1, 128, 64}, {2, 2, 96, 96}}) {
    Problem p = sized(Hk, Hv, K, V, 4);
    p.gates = K == 24 || K == 64 ? PreRuleGates::Channels : PreRuleGates::Heads;
    p.neg_eigval = K == 24;
    p.offsets = {0, 2, 3, 3, 8, 14, 21, 64, 64, 65, 131, 260, 262, 307};
    p.draw(++seed);
    all.push_back(p);
  }
  return all;
}

TEST(GdnPreRule, every_size_and_dtype_matches_the_references_of_its_parts) {
  for (const Problem& drawn : problems()) {
    for (const DType dtype : kDTypes) {
      Problem p = drawn;
      const DType conv_dtype = dtype;
      for (Values* v : {&p.qkv, &p.raw, &p.d_prepared, &p.d_strength, &p.d_write, &p.conv}) round_to(dtype, *v);
      for (Values* v : {&p.A_log, &p.dt_bias, &p.d_decay}) round_to(compute_dtype(dtype), *v);
      const Outcome ours = run(p, dtype, conv_dtype, 2), expected = reference(p);
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (p.by_head() ? " heads K " : " channels K ") + std::to_string(p.K));
      const double exact = dtype == DType::F64 ? 1e-12 : 3e-6, stored = dtype == DType::BF16 ? 4e-3 : dtype == DType::F16 ? 5e-4 : exact;
      // In 16 bits convolution and SiLU are rounded on the way.
      const double through = dtype == DType::BF16 ? 1.2e-2 : dtype == DType::F16 ? 1.5e-3 : exact;
      EXPECT_LE(error_ratio(ours.prepared, expected.prepared), through);
      EXPECT_LE(error_ratio(ours.decay, expected.decay), exact);
      EXPECT_LE(error_ratio(ours.strength, expected.strength), stored);
      EXPECT_LE(error_ratio(ours.d_qkv, expected.d_qkv), through);
      EXPECT_LE(error_ratio(ours.d_raw, expected.d_raw), stored);
      EXPECT_LE(error_ratio(ours.d_conv, expected.d_conv), dtype == DType::BF16 ? 6e-3 : dtype == DType::F16 ? 8e-4 : exact);
      EXPECT_LE(error_ratio(ours.d_A_log, expected.d_A_log), dtype == DType::F64 ? 1e-12 : 2e-5);
      EXPECT_LE(error_ratio(ours.d_dt_bias, expected.d_dt_bias), dtype == DType::F64 ? 1e-12 : 2e-5);
      if (!p.by_head()) {
        EXPECT_LE(error_ratio(ours.write, expected.write), stored);
      }
      EXPECT_EQ(ours.touched, 0);
    }
  }
}

// Section 7.1 of the contract: the sum is rounded, then SiLU of it, then the normalised value.
TEST(GdnPreRule, rounds_to_bf16_after_the_convolution_after_silu_and_after_the_norm) {
  Problem p = sized(1, 1, 6, 4, 3);
  p.offsets = {0, 9};
  p.draw(3);
  for (Values* v : {&p.qkv, &p.raw, &p.conv}) round_to(DType::BF16, *v);
  Values z(p.qkv.size());
  for (std::int64_t t = 0; t < 9; ++t) {
    for (std::int64_t c = 0; c < p.channels(); ++c) {
      for (std::int64_t i = 0; i < 3; ++i) {
        if (t - 2 + i >= 0) z[t * p.channels() + c] += p.conv[c * 3 + i] * p.qkv[(t - 2 + i) * p.channels() + c];
      }
    }
  }
  round_to(DType::BF16, z);
  Values s = z;
  for (double& value : s) value *= reference_sigmoid(value);
  round_to(DType::BF16, s);
  Values expected = s;
  for (std::int64_t t = 0; t < 9; ++t) {
    for (std::int64_t h = 0; h < 2; ++h) {
      const auto at = s.begin() + t * p.channels() + h * p.K;
      const L2NormReference norm = reference_l2_norm(p.K, 1e-6, Values(at, at + p.K), Values(p.K, 0.0));
      std::copy(norm.y.begin(), norm.y.end(), expected.begin() + t * p.channels() + h * p.K);
    }
  }
  round_to(DType::BF16, expected);
  const Values ours = run(p, DType::BF16, DType::F32, 1).prepared;
  int differ = 0;  // fp32 sums fall on the other side of a rounding border now and then
  for (std::size_t i = 0; i < expected.size(); ++i) differ += ours[i] != expected[i];
  EXPECT_LE(differ, 2);
}

TEST(GdnPreRule, bits_do_not_depend_on_the_number_of_threads) {
  for (const Problem& p : problems()) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      if (p.K > 64 && !kOnCuda) continue;  // the CPU has one kernel for all of them
      const std::vector<char> one = run(p, dtype, dtype, 1).bits;
      for (int threads : {2, 3}) EXPECT_EQ(run(p, dtype, dtype, threads).bits, one);
    }
  }
}

TEST(GdnPreRule, no_tokens_write_nothing) {
  Problem p;
  p.offsets = {0, 0};
  p.draw(1);
  const Outcome o = run(p, DType::F32, DType::F32, 1);
  EXPECT_EQ(o.touched, 0);
  for (double value : o.d_conv) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace deltron::test
