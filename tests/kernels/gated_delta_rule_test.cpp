// The gated delta rule's kernels against the token-by-token reference and against themselves: layouts, gates, states, isolation,
// and bits that depend on neither thread count nor scratch contents.
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "src/base/error.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_runner.h"

namespace deltron::test {
namespace {

struct Shape {
  std::vector<std::int64_t> lengths;
  std::int64_t key_heads, group, key_dim, value_dim;
};

DeltaRuleProblem make_problem(const Shape& shape, std::uint64_t seed, bool raw = false, bool l2norm = true, bool states = true) {
  TestRandom random(seed);
  DeltaRuleProblem p;
  p.offsets = {0};
  for (std::int64_t length : shape.lengths) p.offsets.push_back(p.offsets.back() + length);
  p.key_heads = shape.key_heads, p.value_heads = shape.key_heads * shape.group, p.key_dim = shape.key_dim,
  p.value_dim = shape.value_dim;
  const std::int64_t T = p.tokens(), Hk = p.key_heads, Hv = p.value_heads, K = p.key_dim, V = p.value_dim, N = p.documents();
  p.raw = raw, p.l2norm = l2norm, p.scale = 1 / std::sqrt(static_cast<double>(K));
  const double key_scale = l2norm ? 1 : 1.2 / std::sqrt(static_cast<double>(K));
  p.q = random.values(T * Hk * K, key_scale), p.k = random.values(T * Hk * K, key_scale), p.v = random.values(T * Hv * V);
  p.decay = raw ? random.values(T * Hv, 2) : random.values(T * Hv, 0.1, -0.1);
  p.beta = raw ? random.values(T * Hv, 2) : random.values(T * Hv, 0.5, 0.5);
  p.A_log = random.values(Hv, 1, -1), p.dt_bias = random.values(Hv, 1);
  if (states) p.initial_state = random.values(N * Hv * K * V), p.d_final_state = random.values(N * Hv * K * V);
  p.d_o = random.values(T * Hv * V);
  return p;
}

void round_inputs(DeltaRuleProblem& p, const DeltaRuleRun& run) {
  for (auto* values : {&p.q, &p.k, &p.v, &p.d_o}) round_to(run.dtype, *values);
  for (auto* values : {&p.initial_state, &p.d_final_state, &p.A_log, &p.dt_bias}) round_to(compute_dtype(run.dtype), *values);
  round_to(run.decay_dtype, p.decay);
  round_to(run.fused_views ? run.decay_dtype : run.beta_dtype, p.beta);
}

struct Field {
  const char* name;
  std::vector<double> DeltaRuleResult::*values;
};
const Field kFields[] = {{"o", &DeltaRuleResult::o},
                         {"final_state", &DeltaRuleResult::final_state},
                         {"d_q", &DeltaRuleResult::d_q},
                         {"d_k", &DeltaRuleResult::d_k},
                         {"d_v", &DeltaRuleResult::d_v},
                         {"d_decay", &DeltaRuleResult::d_decay},
                         {"d_beta", &DeltaRuleResult::d_beta},
                         {"d_initial_state", &DeltaRuleResult::d_initial_state},
                         {"d_A_log", &DeltaRuleResult::d_A_log},
                         {"d_dt_bias", &DeltaRuleResult::d_dt_bias}};

void expect_matches(DeltaRuleProblem p, const DeltaRuleRun& run, const std::string& what) {
  round_inputs(p, run);
  const DeltaRuleResult expected = reference_gated_delta_rule(p);
  const DeltaRuleOutcome outcome = run_gated_delta_rule(p, run);
  for (const Field& field : kFields) {
    const std::string name = field.name;
    if (!p.raw && (name == "d_A_log" || name == "d_dt_bias")) continue;
    const bool gate = name == "d_decay" || name == "d_A_log" || name == "d_dt_bias";
    const double limit = run.dtype == DType::F64   ? (gate ? 1e-11 : 1e-12)
                         : run.dtype == DType::F32 ? (gate ? 3e-5 : 5e-6)
                         : gate                    ? 0.01
                                                   : 0.006;
    EXPECT_LE(error_ratio(outcome.result.*field.values, expected.*field.values), limit) << name << ": " << what;
  }
  EXPECT_EQ(outcome.touched_outside, 0) << what;
}

DeltaRuleRun run_of(DType dtype) {
  DeltaRuleRun run;
  run.dtype = dtype;
  run.decay_dtype = run.beta_dtype = run.d_gate_dtype = compute_dtype(dtype);
  return run;
}
constexpr DType kDTypes[] = {DType::F32, DType::F64, DType::BF16};
const std::vector<std::int64_t> kRagged = {0, 1, 63, 64, 65, 0, 130, 5, 0};

TEST(GatedDeltaRule, ragged_documents_grouped_heads_and_any_dims_match_the_reference) {
  const Shape shapes[] = {{kRagged, 2, 1, 16, 48}, {kRagged, 1, 2, 20, 12}, {kRagged, 1, 4, 7, 3},  {{200}, 2, 2, 32, 32},
                          {{70, 3}, 1, 1, 64, 64}, {{66}, 1, 1, 128, 128},  {{1, 1, 1}, 3, 1, 1, 1}};
  std::uint64_t seed = 1;
  for (const Shape& shape : shapes) {
    for (const DType dtype : kDTypes) {
      for (const bool raw : {false, true}) {
        for (const bool l2norm : {false, true}) {
          const std::string what = std::string(dtype_name(dtype)) + (raw ? " raw" : "") + (l2norm ? " l2norm" : "") + " K " +
                                   std::to_string(shape.key_dim) + " V " + std::to_string(shape.value_dim);
          if (l2norm && shape.key_dim == 1) continue;  // a normalised number is +-1: its gradient is rounding alone
          ++seed;
          expect_matches(make_problem(shape, seed, raw, l2norm, seed % 3 != 0), run_of(dtype), what);
        }
      }
    }
  }
}

TEST(GatedDeltaRule, views_inside_fused_projections_match_the_reference) {
  for (const DType dtype : kDTypes) {
    DeltaRuleRun run = run_of(dtype);
    run.fused_views = true;
    run.decay_dtype = run.d_gate_dtype = dtype;
    expect_matches(make_problem({kRagged, 2, 2, 20, 12}, 5, true), run, dtype_name(dtype));
  }
}

TEST(GatedDeltaRule, batch_first_and_sequence_first_views_give_the_packed_bits) {
  const DeltaRuleProblem p = make_problem({{70, 70, 70}, 2, 2, 16, 16}, 6, true);
  DeltaRuleRun run = run_of(DType::F32);
  const DeltaRuleOutcome packed = run_gated_delta_rule(p, run);
  for (const auto layout : {DeltaRuleRun::BatchFirst, DeltaRuleRun::SequenceFirst}) {
    for (const bool fused : {false, true}) {
      run.layout = layout;
      run.fused_views = fused;
      const DeltaRuleOutcome other = run_gated_delta_rule(p, run);
      for (const Field& field : kFields) EXPECT_EQ(packed.result.*field.values, other.result.*field.values) << field.name;
      EXPECT_EQ(other.touched_outside, 0);
    }
  }
}

TEST(GatedDeltaRule, doubled_write_strength_matches_the_reference) {
  DeltaRuleProblem p = make_problem({{90, 65}, 1, 2, 16, 16}, 7, true);
  p.allow_neg_eigval = true;
  for (const DType dtype : {DType::F64, DType::F32}) expect_matches(p, run_of(dtype), dtype_name(dtype));
}

TEST(GatedDeltaRule, bf16_gates_match_the_reference) {
  DeltaRuleRun run = run_of(DType::BF16);
  run.decay_dtype = run.beta_dtype = run.d_gate_dtype = DType::BF16;
  expect_matches(make_problem({kRagged, 1, 2, 16, 16}, 8, true), run, "bf16 gates");
}

TEST(GatedDeltaRule, every_gradient_agrees_with_finite_differences_in_fp64) {
  DeltaRuleProblem p = make_problem({{67, 0, 3}, 1, 2, 5, 4}, 9, true);
  p.allow_neg_eigval = true;
  const DeltaRuleRun run = run_of(DType::F64);
  const DeltaRuleResult r = run_gated_delta_rule(p, run).result;
  DeltaRuleRun forward = run;
  forward.backward = false;
  const auto loss = [&] {
    const DeltaRuleResult f = run_gated_delta_rule(p, forward).result;
    double sum = 0;
    for (std::size_t i = 0; i < f.o.size(); ++i) sum += f.o[i] * p.d_o[i];
    for (std::size_t i = 0; i < f.final_state.size(); ++i) sum += f.final_state[i] * p.d_final_state[i];
    return sum;
  };
  struct Input {
    const char* name;
    std::vector<double>& values;
    const std::vector<double>& gradient;
  };
  const Input inputs[] = {{"q", p.q, r.d_q},
                          {"k", p.k, r.d_k},
                          {"v", p.v, r.d_v},
                          {"alpha", p.decay, r.d_decay},
                          {"beta_raw", p.beta, r.d_beta},
                          {"A_log", p.A_log, r.d_A_log},
                          {"dt_bias", p.dt_bias, r.d_dt_bias},
                          {"initial_state", p.initial_state, r.d_initial_state}};
  for (const Input& input : inputs) {
    double largest = 0;
    for (double value : input.gradient) largest = std::max(largest, std::fabs(value));
    EXPECT_GT(largest, 1e-3) << input.name;
    const std::size_t stride = std::max<std::size_t>(1, input.values.size() / 40);
    for (std::size_t i = 0; i < input.values.size(); i += stride) {
      const double kept = input.values[i], step = 1e-5;
      input.values[i] = kept + step;
      const double up = loss();
      input.values[i] = kept - step;
      const double down = loss();
      input.values[i] = kept;
      EXPECT_NEAR(input.gradient[i], (up - down) / (2 * step), 1e-7 * std::max(1.0, largest)) << input.name << " " << i;
    }
  }
}

// Problem `p` cut to tokens [begin, end) of its only document.
DeltaRuleProblem piece(const DeltaRuleProblem& p, std::int64_t begin, std::int64_t end) {
  DeltaRuleProblem part = p;
  part.offsets = {0, end - begin};
  const auto cut = [&](const std::vector<double>& from, std::int64_t width) {
    return std::vector<double>(from.begin() + begin * width, from.begin() + end * width);
  };
  part.q = cut(p.q, p.key_heads * p.key_dim), part.k = cut(p.k, p.key_heads * p.key_dim);
  part.v = cut(p.v, p.value_heads * p.value_dim), part.d_o = cut(p.d_o, p.value_heads * p.value_dim);
  part.decay = cut(p.decay, p.value_heads), part.beta = cut(p.beta, p.value_heads);
  return part;
}

TEST(GatedDeltaRule, two_calls_with_carried_state_equal_one) {
  for (const std::int64_t cut : {128, 70, 1}) {
    const DeltaRuleProblem whole = make_problem({{200}, 1, 2, 16, 32}, 10);
    const DeltaRuleRun run = run_of(DType::F32);
    const DeltaRuleResult once = run_gated_delta_rule(whole, run).result;
    DeltaRuleProblem first = piece(whole, 0, cut), second = piece(whole, cut, 200);
    second.initial_state = run_gated_delta_rule(first, run).result.final_state;
    const DeltaRuleResult back = run_gated_delta_rule(second, run).result;
    first.d_final_state = back.d_initial_state;
    const DeltaRuleResult front = run_gated_delta_rule(first, run).result;
    const auto joined = [](std::vector<double> a, const std::vector<double>& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    if (cut % 64 == 0) {
      EXPECT_EQ(joined(front.o, back.o), once.o);
      EXPECT_EQ(joined(front.d_k, back.d_k), once.d_k);
      EXPECT_EQ(front.d_initial_state, once.d_initial_state);
    }
    EXPECT_LE(error_ratio(joined(front.o, back.o), once.o), 1e-6) << cut;
    EXPECT_LE(error_ratio(back.final_state, once.final_state), 1e-6) << cut;
    EXPECT_LE(error_ratio(joined(front.d_q, back.d_q), once.d_q), 1e-6) << cut;
    EXPECT_LE(error_ratio(joined(front.d_k, back.d_k), once.d_k), 1e-6) << cut;
    EXPECT_LE(error_ratio(joined(front.d_v, back.d_v), once.d_v), 1e-6) << cut;
    EXPECT_LE(error_ratio(joined(front.d_decay, back.d_decay), once.d_decay), 1e-5) << cut;
    EXPECT_LE(error_ratio(front.d_initial_state, once.d_initial_state), 1e-6) << cut;
  }
}

TEST(GatedDeltaRule, a_document_changes_no_bit_of_another) {
  DeltaRuleProblem p = make_problem({{100, 77, 3}, 1, 2, 16, 16}, 11, true);
  for (const int threads : {1, 3}) {
    DeltaRuleRun run = run_of(DType::F32);
    run.threads = threads;
    const DeltaRuleResult before = run_gated_delta_rule(p, run).result;
    DeltaRuleProblem changed = p;
    TestRandom random(12);
    for (std::int64_t t = 100; t < 177; ++t) {
      for (std::int64_t i = 0; i < 16; ++i) changed.q[t * 16 + i] = random.next(), changed.k[t * 16 + i] = random.next();
      for (std::int64_t i = 0; i < 32; ++i) changed.v[t * 32 + i] = 100 * random.next(), changed.d_o[t * 32 + i] = random.next();
      for (std::int64_t i = 0; i < 2; ++i) changed.decay[t * 2 + i] = 9, changed.beta[t * 2 + i] = -9;
    }
    const DeltaRuleResult after = run_gated_delta_rule(changed, run).result;
    for (const Field& field : kFields) {
      const auto& a = before.*field.values;
      const auto& b = after.*field.values;
      if (a.size() < 180) continue;  // A_log, dt_bias: sums over all documents
      const bool per_document = a.size() == 3 * 2 * 16 * 16;
      const std::size_t unit = a.size() / (per_document ? 3 : 180);
      const std::size_t begin = (per_document ? 1 : 100) * unit, end = (per_document ? 2 : 177) * unit;
      EXPECT_TRUE(std::equal(a.begin(), a.begin() + begin, b.begin())) << field.name;
      EXPECT_TRUE(std::equal(a.begin() + end, a.end(), b.begin() + end)) << field.name;
      EXPECT_FALSE(std::equal(a.begin() + begin, a.begin() + end, b.begin() + begin)) << field.name;
    }
  }
}

TEST(GatedDeltaRule, bits_depend_on_neither_threads_nor_repetition) {
  const Shape shapes[] = {{{300}, 1, 2, 16, 32}, {kRagged, 2, 2, 16, 16}, {{40, 50, 60, 70, 300, 20}, 4, 1, 32, 32}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      const DeltaRuleProblem p = make_problem(shape, 13, true);
      DeltaRuleRun run = run_of(dtype);
      run.threads = 1;
      const std::vector<char> bits = run_gated_delta_rule(p, run).bits;
      for (const int threads : {1, 2, 3, 8}) {
        run.threads = threads;
        EXPECT_EQ(run_gated_delta_rule(p, run).bits, bits) << threads << " threads, " << dtype_name(dtype);
      }
    }
  }
}

TEST(GatedDeltaRule, inference_without_the_kept_inverse_gives_the_same_bits) {
  const DeltaRuleProblem p = make_problem({kRagged, 1, 2, 16, 16}, 14);
  for (const int threads : {1, 8}) {
    DeltaRuleRun run = run_of(DType::BF16);
    run.threads = threads;
    const DeltaRuleResult training = run_gated_delta_rule(p, run).result;
    run.keep_inverse = false;
    const DeltaRuleOutcome inference = run_gated_delta_rule(p, run);
    EXPECT_EQ(training.o, inference.result.o);
    EXPECT_EQ(training.final_state, inference.result.final_state);
    EXPECT_EQ(inference.touched_outside, 0);
  }
}

TEST(GatedDeltaRule, first_token_of_a_zero_state_has_exactly_no_decay_gradient) {
  for (const DType dtype : kDTypes) {
    DeltaRuleProblem p = make_problem({{150, 64, 1, 20}, 1, 2, 16, 16}, 15);
    p.initial_state.clear();
    const DeltaRuleResult r = run_gated_delta_rule(p, run_of(dtype)).result;
    for (const std::int64_t first : {0, 150, 214, 215}) {
      for (std::int64_t h = 0; h < 2; ++h) EXPECT_EQ(r.d_decay[first * 2 + h], 0.0) << dtype_name(dtype) << " token " << first;
    }
    EXPECT_NE(r.d_decay[2], 0.0);
  }
}

TEST(GatedDeltaRule, empty_documents_pass_state_and_gradient_through) {
  const DeltaRuleProblem p = make_problem({{0, 3, 0}, 1, 2, 4, 4}, 16);
  const DeltaRuleResult r = run_gated_delta_rule(p, run_of(DType::F64)).result;
  const std::size_t state = 2 * 4 * 4;
  for (const std::size_t document : {std::size_t{0}, std::size_t{2}}) {
    for (std::size_t i = document * state; i < (document + 1) * state; ++i) {
      EXPECT_EQ(r.final_state[i], p.initial_state[i]);
      EXPECT_EQ(r.d_initial_state[i], p.d_final_state[i]);
    }
  }
  expect_matches(make_problem({{0, 0}, 1, 1, 4, 4}, 17), run_of(DType::F32), "only empty documents");
}

TEST(GatedDeltaRule, zero_vectors_stay_finite_under_normalisation) {
  DeltaRuleProblem p = make_problem({{70}, 1, 1, 16, 16}, 18);
  for (std::int64_t i = 0; i < 16 * 40; ++i) p.q[i] = p.k[i] = 0;
  for (const DType dtype : kDTypes) expect_matches(p, run_of(dtype), dtype_name(dtype));
}

TEST(GatedDeltaRule, saturated_gates_stay_finite_and_right) {
  DeltaRuleProblem p = make_problem({{130}, 1, 1, 16, 16}, 19, true);
  const double extremes[] = {100, -100, 30, -30, 20.5, 19.5, 0};
  for (std::size_t t = 0; t < p.decay.size(); ++t) {
    if (t % 3 == 0) p.decay[t] = extremes[t % 7];
    if (t % 5 == 0) p.beta[t] = extremes[(t / 5) % 7];
  }
  for (const double A_log : {-3.0, 2.8}) {
    p.A_log[0] = A_log;
    for (const DType dtype : {DType::F64, DType::F32}) expect_matches(p, run_of(dtype), "saturated gates");
  }
}

TEST(GatedDeltaRule, infinite_decay_is_a_reset) {
  for (const std::int64_t border : {64, 70, 1}) {
    DeltaRuleProblem p = make_problem({{150}, 1, 1, 16, 16}, 20);
    p.decay[border] = -std::numeric_limits<double>::infinity();
    for (const DType dtype : {DType::F64, DType::F32}) expect_matches(p, run_of(dtype), "reset");
    const DeltaRuleResult joined = run_gated_delta_rule(p, run_of(DType::F64)).result;
    DeltaRuleProblem tail = piece(p, border, 150);
    tail.initial_state.assign(16 * 16, 0.0);
    tail.decay[0] = -0.1;
    const DeltaRuleResult alone = run_gated_delta_rule(tail, run_of(DType::F64)).result;
    const std::vector<double> o(joined.o.begin() + border * 16, joined.o.end());
    EXPECT_LE(error_ratio(o, alone.o), 1e-13);
    EXPECT_EQ(joined.d_decay[border], 0.0);
  }
}

TEST(GatedDeltaRule, strong_decay_keeps_full_precision) {
  DeltaRuleProblem p = make_problem({{200}, 1, 2, 16, 16}, 21);
  TestRandom random(22);
  for (double& g : p.decay) g = random.next() > 0.5 ? -60 * (random.next() + 1) : -1e-3;
  expect_matches(p, run_of(DType::F32), "strong decay");
}

TEST(GatedDeltaRule, nan_gates_are_not_hidden) {
  DeltaRuleProblem p = make_problem({{70}, 1, 1, 16, 16}, 23);
  p.decay[5] = std::nan("");
  const DeltaRuleResult r = run_gated_delta_rule(p, run_of(DType::F32)).result;
  EXPECT_TRUE(std::isnan(r.o[6 * 16]));
  EXPECT_TRUE(std::isnan(r.o[69 * 16]));
}

TEST(GatedDeltaRule, every_instruction_set_matches_the_reference) {
  for (const std::int64_t disabled : {std::int64_t{HWY_AVX3}, std::int64_t{HWY_AVX3 | HWY_AVX2}}) {
    hwy::DisableTargets(disabled | (HWY_AVX3 - 1));
    for (const DType dtype : kDTypes) {
      expect_matches(make_problem({kRagged, 2, 2, 20, 12}, 24, true), run_of(dtype), dtype_name(dtype));
      expect_matches(make_problem({{130, 64}, 1, 1, 32, 64}, 25), run_of(dtype), dtype_name(dtype));
    }
    hwy::DisableTargets(0);
  }
}

TEST(GatedDeltaRule, wrong_offsets_are_an_internal_fault) {
  ThreadPool pool(1);
  StreamHandle stream;
  stream.pool = &pool;
  kernels::GatedDeltaRuleForwardArgs args;
  args.tokens = 8, args.key_heads = 1, args.value_heads = 1, args.key_dim = 4, args.value_dim = 4;
  for (const std::vector<std::int64_t>& offsets : std::vector<std::vector<std::int64_t>>{{0, 9}, {1, 8}, {0, 5, 3, 8}}) {
    args.documents = kernels::Documents{static_cast<std::int64_t>(offsets.size()) - 1, offsets.data()};
    EXPECT_THROW(kernels::cpu::gated_delta_rule_forward_workspace_bytes(args, stream), Error);
  }
  args.value_heads = 3, args.key_heads = 2;
  EXPECT_THROW(kernels::cpu::gated_delta_rule_forward_workspace_bytes(args, stream), Error);
}

}  // namespace
}  // namespace deltron::test
