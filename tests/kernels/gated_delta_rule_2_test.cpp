// The kernels of gated delta rule 2 against the token-by-token reference, against the first rule and Kimi Delta Attention, and
// against themselves: layouts, gates, states, isolation, and bits that depend on neither thread count nor scratch contents.
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "src/base/error.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_2_runner.h"
#include "tests/support/delta_rule_runner.h"

namespace deltron::test {
namespace {

struct Shape {
  std::vector<std::int64_t> lengths;
  std::int64_t key_heads, group, key_dim, value_dim;
  bool gates_of_values = false;
};

DeltaRule2Problem make_problem(const Shape& shape, std::uint64_t seed, bool raw = false, bool l2norm = true, bool states = true) {
  TestRandom random(seed);
  DeltaRule2Problem p;
  p.offsets = {0};
  for (std::int64_t length : shape.lengths) p.offsets.push_back(p.offsets.back() + length);
  p.key_heads = shape.key_heads, p.value_heads = shape.key_heads * shape.group, p.key_dim = shape.key_dim,
  p.value_dim = shape.value_dim;
  p.gate_heads = shape.gates_of_values ? p.value_heads : p.key_heads;
  const std::int64_t T = p.tokens(), Hk = p.key_heads, Hv = p.value_heads, Hg = p.gate_heads, K = p.key_dim, V = p.value_dim;
  p.raw = raw, p.l2norm = l2norm, p.scale = 1 / std::sqrt(static_cast<double>(K));
  const double key_scale = l2norm ? 1 : 1.2 / std::sqrt(static_cast<double>(K));
  p.q = random.values(T * Hk * K, key_scale), p.k = random.values(T * Hk * K, key_scale), p.v = random.values(T * Hv * V);
  p.decay = raw ? random.values(T * Hg * K, 2) : random.values(T * Hg * K, 0.1, -0.1);
  p.erase = raw ? random.values(T * Hg * K, 2) : random.values(T * Hg * K, 0.5, 0.5);
  p.write = raw ? random.values(T * Hv * V, 2) : random.values(T * Hv * V, 0.5, 0.5);
  p.A_log = random.values(Hg, 1, -1), p.dt_bias = random.values(Hg * K, 1);
  if (states)
    p.initial_state = random.values(p.documents() * Hv * K * V), p.d_final_state = random.values(p.documents() * Hv * K * V);
  p.d_o = random.values(T * Hv * V);
  return p;
}

struct Field {
  const char* name;
  std::vector<double> DeltaRule2Result::*values;
};
const Field kFields[] = {{"o", &DeltaRule2Result::o},
                         {"final_state", &DeltaRule2Result::final_state},
                         {"d_q", &DeltaRule2Result::d_q},
                         {"d_k", &DeltaRule2Result::d_k},
                         {"d_v", &DeltaRule2Result::d_v},
                         {"d_decay", &DeltaRule2Result::d_decay},
                         {"d_erase", &DeltaRule2Result::d_erase},
                         {"d_write", &DeltaRule2Result::d_write},
                         {"d_initial_state", &DeltaRule2Result::d_initial_state},
                         {"d_A_log", &DeltaRule2Result::d_A_log},
                         {"d_dt_bias", &DeltaRule2Result::d_dt_bias}};

DeltaRule2Run run_of(DType dtype) {
  DeltaRule2Run run;
  run.dtype = dtype;
  run.decay_dtype = run.gate_dtype = run.d_gate_dtype = compute_dtype(dtype);
  return run;
}
constexpr DType kDTypes[] = {DType::F32, DType::F64, DType::BF16};
const std::vector<std::int64_t> kRagged = {0, 1, 63, 64, 65, 0, 130, 17, 16, 5, 0};

void expect_matches(DeltaRule2Problem p, const DeltaRule2Run& run, const std::string& what) {
  for (auto* values : {&p.q, &p.k, &p.v, &p.d_o}) round_to(run.dtype, *values);
  for (auto* values : {&p.initial_state, &p.d_final_state, &p.A_log, &p.dt_bias}) round_to(compute_dtype(run.dtype), *values);
  round_to(run.decay_dtype, p.decay), round_to(run.gate_dtype, p.erase), round_to(run.gate_dtype, p.write);
  const DeltaRule2Result expected = reference_gated_delta_rule_2(p);
  const DeltaRule2Outcome outcome = run_gated_delta_rule_2(p, run);
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

TEST(GatedDeltaRule2, ragged_documents_grouped_heads_and_any_dims_match_the_reference) {
  const Shape shapes[] = {{kRagged, 2, 1, 16, 48}, {kRagged, 1, 2, 20, 12}, {kRagged, 1, 2, 20, 12, true},
                          {kRagged, 1, 4, 7, 3},   {{200}, 2, 2, 32, 32},   {{200}, 2, 2, 32, 32, true},
                          {{70, 3}, 1, 1, 64, 64}, {{66}, 1, 1, 128, 128},  {{1, 1, 1}, 3, 1, 2, 1, false}};
  std::uint64_t seed = 1;
  for (const Shape& shape : shapes) {
    for (const DType dtype : kDTypes) {
      for (const bool raw : {false, true}) {
        for (const bool l2norm : {false, true}) {
          const std::string what = std::string(dtype_name(dtype)) + (raw ? " raw" : "") + (l2norm ? " l2norm" : "") + " K " +
                                   std::to_string(shape.key_dim) + " V " + std::to_string(shape.value_dim);
          ++seed;
          expect_matches(make_problem(shape, seed, raw, l2norm, seed % 3 != 0), run_of(dtype), what);
        }
      }
    }
  }
}

TEST(GatedDeltaRule2, every_document_length_around_sub_blocks_matches_the_reference) {
  for (std::int64_t length = 1; length <= 81; ++length) {
    const std::uint64_t seed = static_cast<std::uint64_t>(1000 + length);
    expect_matches(make_problem({{length}, 1, 1, 8, 4}, seed), run_of(DType::F64), std::to_string(length) + " tokens");
  }
}

TEST(GatedDeltaRule2, strided_views_and_gates_in_storage_type_match_the_reference) {
  for (const DType dtype : kDTypes) {
    DeltaRule2Run run = run_of(dtype);
    run.gap = 7;
    run.decay_dtype = run.gate_dtype = run.d_gate_dtype = dtype;
    expect_matches(make_problem({kRagged, 2, 2, 20, 12}, 5, true), run, dtype_name(dtype));
    expect_matches(make_problem({kRagged, 2, 2, 20, 12, true}, 6, true), run, dtype_name(dtype));
  }
}

TEST(GatedDeltaRule2, batch_first_and_sequence_first_views_give_the_packed_values) {
  const DeltaRule2Problem p = make_problem({{70, 70, 70}, 2, 2, 16, 16}, 6, true);
  DeltaRule2Run run = run_of(DType::F32);
  const DeltaRule2Outcome packed = run_gated_delta_rule_2(p, run);
  for (const auto layout : {DeltaRule2Run::BatchFirst, DeltaRule2Run::SequenceFirst}) {
    for (const std::int64_t gap : {0, 5}) {
      run.layout = layout;
      run.gap = gap;
      const DeltaRule2Outcome other = run_gated_delta_rule_2(p, run);
      for (const Field& field : kFields) EXPECT_EQ(packed.result.*field.values, other.result.*field.values) << field.name;
      EXPECT_EQ(other.touched_outside, 0);
    }
  }
}

TEST(GatedDeltaRule2, doubled_erase_gate_matches_the_reference) {
  DeltaRule2Problem p = make_problem({{90, 65}, 1, 2, 16, 16}, 7, true);
  p.allow_neg_eigval = true;
  for (const DType dtype : {DType::F64, DType::F32}) expect_matches(p, run_of(dtype), dtype_name(dtype));
}

TEST(GatedDeltaRule2, every_gradient_agrees_with_finite_differences_in_fp64) {
  for (const bool gates_of_values : {false, true}) {
    DeltaRule2Problem p = make_problem({{67, 0, 3}, 1, 2, 5, 4, gates_of_values}, 9, true);
    p.allow_neg_eigval = true;
    const DeltaRule2Run run = run_of(DType::F64);
    const DeltaRule2Result r = run_gated_delta_rule_2(p, run).result;
    DeltaRule2Run forward = run;
    forward.backward = false;
    const auto loss = [&] {
      const DeltaRule2Result f = run_gated_delta_rule_2(p, forward).result;
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
                            {"f", p.decay, r.d_decay},
                            {"b_raw", p.erase, r.d_erase},
                            {"w_raw", p.write, r.d_write},
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
}

// Repeats every value `times` times: a scalar gate as a channel gate.
std::vector<double> repeated(const std::vector<double>& values, std::int64_t times) {
  std::vector<double> result;
  for (double value : values) result.insert(result.end(), static_cast<std::size_t>(times), value);
  return result;
}
std::vector<double> summed(const std::vector<double>& values, std::int64_t width) {
  std::vector<double> result(values.size() / static_cast<std::size_t>(width), 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) result[i / static_cast<std::size_t>(width)] += values[i];
  return result;
}

TEST(GatedDeltaRule2, with_scalar_gates_is_the_gated_delta_rule) {
  for (const DType dtype : {DType::F64, DType::F32}) {
    const double limit = dtype == DType::F64 ? 1e-12 : 5e-6;
    const DeltaRule2Problem shape = make_problem({kRagged, 1, 2, 16, 12, true}, 30);
    TestRandom random(31);
    DeltaRuleProblem one;
    one.key_heads = 1, one.value_heads = 2, one.key_dim = 16, one.value_dim = 12, one.offsets = shape.offsets;
    one.l2norm = true, one.scale = shape.scale, one.q = shape.q, one.k = shape.k, one.v = shape.v, one.d_o = shape.d_o;
    one.initial_state = shape.initial_state, one.d_final_state = shape.d_final_state;
    one.decay = random.values(shape.tokens() * 2, 1.5, -1.5), one.beta = random.values(shape.tokens() * 2, 0.5, 0.5);
    DeltaRule2Problem two = shape;
    two.decay = repeated(one.decay, 16), two.erase = repeated(one.beta, 16), two.write = repeated(one.beta, 12);
    DeltaRuleRun first;
    first.dtype = first.decay_dtype = first.beta_dtype = first.d_gate_dtype = dtype;
    const DeltaRuleResult a = run_gated_delta_rule(one, first).result;
    const DeltaRule2Result b = run_gated_delta_rule_2(two, run_of(dtype)).result;
    EXPECT_LE(error_ratio(b.o, a.o), limit);
    EXPECT_LE(error_ratio(b.final_state, a.final_state), limit);
    EXPECT_LE(error_ratio(b.d_q, a.d_q), limit);
    EXPECT_LE(error_ratio(b.d_k, a.d_k), limit);
    EXPECT_LE(error_ratio(b.d_v, a.d_v), limit);
    EXPECT_LE(error_ratio(b.d_initial_state, a.d_initial_state), limit);
    EXPECT_LE(error_ratio(summed(b.d_decay, 16), a.d_decay), 3 * limit);
    std::vector<double> d_beta = summed(b.d_erase, 16);
    const std::vector<double> d_write = summed(b.d_write, 12);
    for (std::size_t i = 0; i < d_beta.size(); ++i) d_beta[i] += d_write[i];
    EXPECT_LE(error_ratio(d_beta, a.d_beta), limit);
  }
}

TEST(GatedDeltaRule2, with_one_write_strength_for_both_gates_is_kimi_delta_attention) {
  DeltaRule2Problem p = make_problem({{150}, 1, 1, 16, 12}, 32, false, false, false);
  TestRandom random(33);
  const std::vector<double> beta = random.values(150, 0.5, 0.5);
  p.decay = random.values(150 * 16, 2.5, -2.5);
  p.erase = repeated(beta, 16), p.write = repeated(beta, 12);
  const std::vector<double> expected = reference_kda(150, 16, 12, p.scale, p.q, p.k, p.v, p.decay, beta);
  EXPECT_LE(error_ratio(run_gated_delta_rule_2(p, run_of(DType::F64)).result.o, expected), 1e-12);
}

TEST(GatedDeltaRule2, without_decay_or_erasure_sums_its_writes) {
  DeltaRule2Problem p = make_problem({{90}, 1, 1, 8, 8}, 34, false, false, false);
  std::fill(p.decay.begin(), p.decay.end(), 0.0), std::fill(p.erase.begin(), p.erase.end(), 0.0);
  std::vector<double> S(64, 0.0), expected;
  for (std::int64_t t = 0; t < 90; ++t) {
    for (std::int64_t i = 0; i < 64; ++i) S[i] += p.k[t * 8 + i / 8] * p.write[t * 8 + i % 8] * p.v[t * 8 + i % 8];
    for (std::int64_t j = 0; j < 8; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < 8; ++i) sum += p.scale * p.q[t * 8 + i] * S[i * 8 + j];
      expected.push_back(sum);
    }
  }
  EXPECT_LE(error_ratio(run_gated_delta_rule_2(p, run_of(DType::F64)).result.o, expected), 1e-13);
}

TEST(GatedDeltaRule2, shared_gates_give_what_gates_copied_to_the_value_heads_give) {
  const DeltaRule2Problem shared = make_problem({kRagged, 2, 2, 16, 12}, 35, true);
  DeltaRule2Problem copied = shared;
  copied.gate_heads = 4;
  const auto copy = [](const std::vector<double>& from, std::int64_t width) {  // [.., 2, width] -> [.., 4, width]
    std::vector<double> to;
    for (std::size_t i = 0; i < from.size(); i += static_cast<std::size_t>(width)) {
      for (int twice = 0; twice < 2; ++twice)
        to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(i), from.begin() + static_cast<std::ptrdiff_t>(i) + width);
    }
    return to;
  };
  copied.decay = copy(shared.decay, 16), copied.erase = copy(shared.erase, 16);
  copied.A_log = copy(shared.A_log, 1), copied.dt_bias = copy(shared.dt_bias, 16);
  const DeltaRule2Result a = run_gated_delta_rule_2(shared, run_of(DType::F64)).result,
                         b = run_gated_delta_rule_2(copied, run_of(DType::F64)).result;
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.final_state, b.final_state);
  EXPECT_EQ(a.d_write, b.d_write);
  EXPECT_LE(error_ratio(b.d_k, a.d_k), 1e-13);
  std::vector<double> d_erase;
  for (std::size_t i = 0; i < b.d_erase.size(); ++i) {
    if (i / 16 % 2 == 0) d_erase.push_back(b.d_erase[i] + b.d_erase[i + 16]);
  }
  EXPECT_LE(error_ratio(d_erase, a.d_erase), 1e-13);
  EXPECT_LE(error_ratio(summed(b.d_A_log, 2), a.d_A_log), 1e-12);
}

// Problem `p` cut to tokens [begin, end) of its only document.
DeltaRule2Problem piece(const DeltaRule2Problem& p, std::int64_t begin, std::int64_t end) {
  DeltaRule2Problem part = p;
  part.offsets = {0, end - begin};
  const auto cut = [&](const std::vector<double>& from, std::int64_t width) {
    return std::vector<double>(from.begin() + begin * width, from.begin() + end * width);
  };
  part.q = cut(p.q, p.key_heads * p.key_dim), part.k = cut(p.k, p.key_heads * p.key_dim);
  part.v = cut(p.v, p.value_heads * p.value_dim), part.d_o = cut(p.d_o, p.value_heads * p.value_dim);
  part.decay = cut(p.decay, p.gate_heads * p.key_dim), part.erase = cut(p.erase, p.gate_heads * p.key_dim);
  part.write = cut(p.write, p.value_heads * p.value_dim);
  return part;
}

TEST(GatedDeltaRule2, two_calls_with_carried_state_equal_one) {
  for (const std::int64_t cut : {128, 70, 16, 1}) {
    const DeltaRule2Problem whole = make_problem({{200}, 1, 2, 16, 32}, 10);
    const DeltaRule2Run run = run_of(DType::F32);
    const DeltaRule2Result once = run_gated_delta_rule_2(whole, run).result;
    DeltaRule2Problem first = piece(whole, 0, cut), second = piece(whole, cut, 200);
    second.initial_state = run_gated_delta_rule_2(first, run).result.final_state;
    const DeltaRule2Result back = run_gated_delta_rule_2(second, run).result;
    first.d_final_state = back.d_initial_state;
    const DeltaRule2Result front = run_gated_delta_rule_2(first, run).result;
    const auto joined = [](std::vector<double> a, const std::vector<double>& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    if (cut % 64 == 0) {
      EXPECT_EQ(joined(front.o, back.o), once.o);
      EXPECT_EQ(joined(front.d_decay, back.d_decay), once.d_decay);
      EXPECT_EQ(front.d_initial_state, once.d_initial_state);
    }
    for (const Field& field : kFields) {
      const std::string name = field.name;
      if (name == "final_state" || name == "d_initial_state" || name == "d_A_log" || name == "d_dt_bias") continue;
      EXPECT_LE(error_ratio(joined(front.*field.values, back.*field.values), once.*field.values), 1e-5) << name << " " << cut;
    }
    EXPECT_LE(error_ratio(back.final_state, once.final_state), 1e-6) << cut;
    EXPECT_LE(error_ratio(front.d_initial_state, once.d_initial_state), 1e-6) << cut;
  }
}

TEST(GatedDeltaRule2, a_document_changes_no_bit_of_another) {
  const DeltaRule2Problem p = make_problem({{100, 77, 3}, 1, 2, 16, 16}, 11, true);
  for (const int threads : {1, 3}) {
    DeltaRule2Run run = run_of(DType::F32);
    run.threads = threads;
    const DeltaRule2Result before = run_gated_delta_rule_2(p, run).result;
    DeltaRule2Problem changed = p;
    TestRandom random(12);
    for (auto* values : {&changed.q, &changed.k, &changed.v, &changed.decay, &changed.erase, &changed.write, &changed.d_o}) {
      const std::size_t width = values->size() / 180;
      for (std::size_t i = 100 * width; i < 177 * width; ++i) (*values)[i] = 9 * random.next();
    }
    const DeltaRule2Result after = run_gated_delta_rule_2(changed, run).result;
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

TEST(GatedDeltaRule2, bits_depend_on_neither_threads_nor_repetition) {
  const Shape shapes[] = {
      {{300}, 1, 2, 16, 32}, {{300}, 1, 4, 16, 32, true}, {kRagged, 2, 2, 16, 16}, {{40, 50, 60, 70, 300, 20}, 4, 1, 32, 32}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      const DeltaRule2Problem p = make_problem(shape, 13, true);
      DeltaRule2Run run = run_of(dtype);
      run.threads = 1;
      const std::vector<char> bits = run_gated_delta_rule_2(p, run).bits;
      for (const int threads : {1, 2, 3, 8}) {
        run.threads = threads;
        EXPECT_EQ(run_gated_delta_rule_2(p, run).bits, bits) << threads << " threads, " << dtype_name(dtype);
      }
    }
  }
}

TEST(GatedDeltaRule2, first_token_of_a_zero_state_has_exactly_no_decay_gradient) {
  for (const DType dtype : kDTypes) {
    DeltaRule2Problem p = make_problem({{150, 64, 1, 20}, 1, 2, 16, 16}, 15);
    p.initial_state.clear();
    const DeltaRule2Result r = run_gated_delta_rule_2(p, run_of(dtype)).result;
    for (const std::int64_t first : {0, 150, 214, 215}) {
      for (std::int64_t c = 0; c < 16; ++c) EXPECT_EQ(r.d_decay[first * 16 + c], 0.0) << dtype_name(dtype) << " token " << first;
    }
    EXPECT_NE(r.d_decay[16], 0.0);
  }
}

TEST(GatedDeltaRule2, empty_documents_pass_state_and_gradient_through) {
  const DeltaRule2Problem p = make_problem({{0, 3, 0}, 1, 2, 4, 4}, 16);
  const DeltaRule2Result r = run_gated_delta_rule_2(p, run_of(DType::F64)).result;
  const std::size_t state = 2 * 4 * 4;
  for (const std::size_t document : {std::size_t{0}, std::size_t{2}}) {
    for (std::size_t i = document * state; i < (document + 1) * state; ++i) {
      EXPECT_EQ(r.final_state[i], p.initial_state[i]);
      EXPECT_EQ(r.d_initial_state[i], p.d_final_state[i]);
    }
  }
  expect_matches(make_problem({{0, 0}, 1, 1, 4, 4}, 17), run_of(DType::F32), "only empty documents");
}

TEST(GatedDeltaRule2, zero_vectors_stay_finite_under_normalisation) {
  DeltaRule2Problem p = make_problem({{70}, 1, 1, 16, 16}, 18);
  for (std::int64_t i = 0; i < 16 * 40; ++i) p.q[i] = p.k[i] = 0;
  for (const DType dtype : kDTypes) expect_matches(p, run_of(dtype), dtype_name(dtype));
}

TEST(GatedDeltaRule2, saturated_gates_stay_finite_and_right) {
  DeltaRule2Problem p = make_problem({{130}, 1, 1, 16, 16}, 19, true);
  const double extremes[] = {100, -100, 30, -30, 20.5, 19.5, 0};
  for (std::size_t i = 0; i < p.decay.size(); ++i) {
    if (i % 3 == 0) p.decay[i] = extremes[i % 7];
    if (i % 5 == 0) p.erase[i] = extremes[(i / 5) % 7];
    if (i % 4 == 0) p.write[i] = extremes[(i / 4) % 7];
  }
  for (const double A_log : {-3.0, 2.8}) {
    p.A_log[0] = A_log;
    for (const DType dtype : {DType::F64, DType::F32}) expect_matches(p, run_of(dtype), "saturated gates");
  }
}

TEST(GatedDeltaRule2, infinite_decay_is_a_reset) {
  const double infinite = std::numeric_limits<double>::infinity();
  for (const std::int64_t border : {64, 70, 80, 1}) {
    DeltaRule2Problem p = make_problem({{150}, 1, 1, 16, 16}, 20);
    std::fill(p.decay.begin() + border * 16, p.decay.begin() + (border + 1) * 16, -infinite);
    for (const DType dtype : {DType::F64, DType::F32}) expect_matches(p, run_of(dtype), "reset");
    const DeltaRule2Result joined = run_gated_delta_rule_2(p, run_of(DType::F64)).result;
    DeltaRule2Problem tail = piece(p, border, 150);
    tail.initial_state.assign(16 * 16, 0.0);
    std::fill(tail.decay.begin(), tail.decay.begin() + 16, -0.1);
    const DeltaRule2Result alone = run_gated_delta_rule_2(tail, run_of(DType::F64)).result;
    const std::vector<double> o(joined.o.begin() + border * 16, joined.o.end());
    EXPECT_LE(error_ratio(o, alone.o), 1e-13);
    for (std::int64_t c = 0; c < 16; ++c) EXPECT_EQ(joined.d_decay[border * 16 + c], 0.0);
  }
  DeltaRule2Problem scattered = make_problem({{150}, 1, 1, 16, 16}, 21);  // some channels only
  for (std::size_t i = 0; i < scattered.decay.size(); i += 37) scattered.decay[i] = -infinite;
  for (const DType dtype : {DType::F64, DType::F32}) expect_matches(scattered, run_of(dtype), "scattered resets");
}

TEST(GatedDeltaRule2, strong_decay_keeps_full_precision) {
  DeltaRule2Problem p = make_problem({{200}, 1, 2, 16, 16}, 22);
  TestRandom random(23);
  for (double& g : p.decay) g = random.next() > 0.5 ? -60 * (random.next() + 1) : -1e-3;
  expect_matches(p, run_of(DType::F32), "mixed decay");
  for (double& g : p.decay) g = -5;  // 64 rows of it overflow an anchor in the middle
  expect_matches(p, run_of(DType::F32), "lower bound");
  for (double& g : p.decay) g = -30;
  expect_matches(p, run_of(DType::F32), "everywhere strong");
}

TEST(GatedDeltaRule2, nan_gates_are_not_hidden) {
  DeltaRule2Problem p = make_problem({{70}, 1, 1, 16, 16}, 24);
  p.decay[5 * 16 + 3] = std::nan("");
  const DeltaRule2Result r = run_gated_delta_rule_2(p, run_of(DType::F32)).result;
  EXPECT_TRUE(std::isnan(r.o[6 * 16]));
  EXPECT_TRUE(std::isnan(r.o[69 * 16]));
}

TEST(GatedDeltaRule2, every_instruction_set_matches_the_reference) {
  for (const std::int64_t disabled : {std::int64_t{HWY_AVX3}, std::int64_t{HWY_AVX3 | HWY_AVX2}}) {
    hwy::DisableTargets(disabled | (HWY_AVX3 - 1));
    for (const DType dtype : kDTypes) {
      expect_matches(make_problem({kRagged, 2, 2, 20, 12}, 25, true), run_of(dtype), dtype_name(dtype));
      expect_matches(make_problem({{130, 64}, 1, 1, 32, 64}, 26), run_of(dtype), dtype_name(dtype));
    }
    hwy::DisableTargets(0);
  }
}

TEST(GatedDeltaRule2, wrong_offsets_and_head_counts_are_an_internal_fault) {
  ThreadPool pool(1);
  StreamHandle stream;
  stream.pool = &pool;
  kernels::GatedDeltaRule2ForwardArgs args;
  args.tokens = 8, args.key_heads = 1, args.value_heads = 1, args.gate_heads = 1, args.key_dim = 4, args.value_dim = 4;
  const std::vector<std::int64_t> good = {0, 8};
  for (const std::vector<std::int64_t>& offsets : std::vector<std::vector<std::int64_t>>{{0, 9}, {1, 8}, {0, 5, 3, 8}}) {
    args.documents = kernels::Documents{static_cast<std::int64_t>(offsets.size()) - 1, offsets.data()};
    EXPECT_THROW(kernels::cpu::gated_delta_rule_2_forward_workspace_bytes(args, stream), Error);
  }
  args.documents = kernels::Documents{1, good.data()};
  EXPECT_GT(kernels::cpu::gated_delta_rule_2_forward_workspace_bytes(args, stream), 0);
  args.value_heads = 4, args.gate_heads = 2;
  EXPECT_THROW(kernels::cpu::gated_delta_rule_2_forward_workspace_bytes(args, stream), Error);
}

}  // namespace
}  // namespace deltron::test
