// kernels/multi_tensor: AdamW, SGD and norms over tables of tensors against independent expected values and plain loops in double; the
// same bits however tensors are grouped, laid out and spread over threads.
#include "kernels/multi_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <sstream>

#include "src/base/bfloat16.h"
#include "src/base/thread_pool.h"
#include "tests/support/golden_file.h"
#include "tests/support/kernel_test.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using kernels::kNormBlock;
using kernels::MultiTensorChunk;
using kernels::MultiTensorEntry;
using test::GoldenFile;
using test::noise;

// A tensor of an optimizer, its five buffers each with a guard behind it and `shift` elements before it.
template <class T>
struct Parameter {
  std::int64_t count, shift;
  bool decays, narrow;  // narrow: a bf16 weight beside the master
  std::vector<T> master, grad, exp_avg, exp_avg_sq;
  std::vector<std::uint16_t> weight;

  Parameter(std::int64_t size, std::uint64_t seed, bool decay = true, bool with_weight = true, std::int64_t offset = 0)
      : count(size), shift(offset), decays(decay), narrow(with_weight) {
    for (std::vector<T>* each : {&master, &grad, &exp_avg, &exp_avg_sq}) each->assign(static_cast<std::size_t>(shift + count + 1), T(-7));
    weight.assign(static_cast<std::size_t>(shift + count + 1), 0x1234);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(shift + i);
      master[at] = static_cast<T>(noise(4 * seed, i)), grad[at] = static_cast<T>(noise(4 * seed + 1, i));
      exp_avg[at] = static_cast<T>(0.1 * noise(4 * seed + 2, i));
      exp_avg_sq[at] = static_cast<T>(std::pow(0.1 * noise(4 * seed + 3, i), 2));
    }
  }
  MultiTensorEntry entry() {
    MultiTensorEntry e;
    e.count = count, e.decays = decays, e.dtype = sizeof(T) == 8 ? DType::F64 : DType::F32;
    e.master = master.data() + shift, e.grad = grad.data() + shift, e.exp_avg = exp_avg.data() + shift, e.exp_avg_sq = exp_avg_sq.data() + shift;
    if (narrow) e.weight = weight.data() + shift;
    e.aligned = kernels::multi_tensor_aligned(e);
    return e;
  }
  // What an update leaves: values without the part before them, so that two layouts compare.
  std::vector<std::vector<T>> state() const {
    std::vector<std::vector<T>> all;
    for (const std::vector<T>* each : {&master, &exp_avg, &exp_avg_sq}) all.emplace_back(each->begin() + shift, each->end());
    std::vector<T> bits(weight.begin() + shift, weight.end());
    all.push_back(bits);
    return all;
  }
};

// A table in memory that the kernels of either back end see.
struct Table {
  std::vector<MultiTensorEntry> entries;
  std::vector<MultiTensorChunk> chunks;
  explicit Table(std::vector<MultiTensorEntry> all) : entries(std::move(all)) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      for (std::int64_t begin = 0; begin < entries[i].count; begin += kNormBlock)
        chunks.push_back({begin, static_cast<std::int32_t>(i), static_cast<std::int32_t>(std::min(kNormBlock, entries[i].count - begin))});
    }
  }
  kernels::MultiTensorTable view() const {
    kernels::MultiTensorTable t;
    t.tensors = entries.data(), t.chunks = chunks.data(), t.chunk_count = static_cast<std::int64_t>(chunks.size());
    for (const MultiTensorEntry& e : entries) (e.dtype == DType::F64 ? t.has_fp64 : t.has_fp32) = true;
    return t;
  }
};
template <class T>
Table table_of(std::vector<Parameter<T>>& parameters) {
  std::vector<MultiTensorEntry> entries;
  for (Parameter<T>& each : parameters) entries.push_back(each.entry());
  return Table(entries);
}

struct Options {
  int threads = 2;
  std::int32_t skip = 0;
  double scale = 0.5;
};
template <class T>
void adamw(std::vector<Parameter<T>>& parameters, const Options& options = {}) {
  ThreadPool pool(options.threads, false);
  const Table table = table_of(parameters);
  const auto factor = std::make_unique<double>(options.scale);
  const auto flag = std::make_unique<std::int32_t>(options.skip);
  kernels::MultiTensorAdamwArgs args;
  args.table = table.view(), args.lr = 0.01, args.weight_decay = 0.1, args.step = 7, args.grad_scale = factor.get(), args.skip_flag = flag.get();
  under_test::multi_tensor_adamw(args, {DeviceKind::Cpu, nullptr, &pool});
}

struct Norm {
  std::vector<double> partials;
  std::vector<std::int64_t> nonfinite;
};
Norm norm_of(const Table& table, int threads) {
  ThreadPool pool(threads, false);
  Norm norm{std::vector<double>(table.chunks.size() + 1, -7), std::vector<std::int64_t>(table.chunks.size() + 1, -7)};
  under_test::multi_tensor_norm({table.view(), norm.partials.data(), norm.nonfinite.data()}, {DeviceKind::Cpu, nullptr, &pool});
  EXPECT_EQ(norm.partials.back(), -7);
  EXPECT_EQ(norm.nonfinite.back(), -7);
  norm.partials.pop_back(), norm.nonfinite.pop_back();
  return norm;
}

// Sizes at which vectors, pieces of chunks, chunks and groups of threads end, and next to them.
const std::vector<std::int64_t> kSizes = {1, 2, 3, 4, 5, 15, 17, 1000, 1023, 1025, 16384, 16384 + 3, 2048 * 5 + 1, kNormBlock - 1, kNormBlock, kNormBlock + 1,
                                          2 * kNormBlock + 16384 + 77};

template <class T>
std::vector<Parameter<T>> parameters_of(const std::vector<std::int64_t>& sizes, std::int64_t shift = 0) {
  std::vector<Parameter<T>> all;
  for (std::size_t i = 0; i < sizes.size(); ++i) all.emplace_back(sizes[i], i + 1, i % 3 != 1, sizeof(T) == 4 && i % 4 != 2, shift);
  return all;
}

// One update in double, element by element; a master's error in units of what its type can do.
template <class T>
void expect_adamw(const Parameter<T>& before, const Parameter<T>& after) {
  const double tolerance = sizeof(T) == 8 ? 1e-14 : 1e-6;
  for (std::int64_t i = 0; i < before.count; ++i) {
    const auto at = static_cast<std::size_t>(before.shift + i);
    const double w0 = before.master[at], g = 0.5 * before.grad[at];
    const double m = 0.9 * before.exp_avg[at] + (1 - 0.9) * g, v = 0.999 * before.exp_avg_sq[at] + (1 - 0.999) * g * g;
    const double root = std::sqrt(v / (1 - std::pow(0.999, 7)));
    const double w = w0 - (before.decays ? 0.01 * 0.1 * w0 : 0) - 0.01 * (m / (1 - std::pow(0.9, 7))) / (root + 1e-8);
    ASSERT_NEAR(after.master[at], w, tolerance * (std::abs(w0) + 0.1)) << i << " of " << before.count;
    ASSERT_NEAR(after.exp_avg[at], m, tolerance * 0.2) << i;
    ASSERT_NEAR(after.exp_avg_sq[at], v, tolerance * 0.02) << i;
    if (before.narrow) {
      ASSERT_EQ(after.weight[at], to_bfloat16(static_cast<float>(after.master[at])).bits) << i;
    }
  }
  const std::vector<T>* ends[] = {&after.master, &after.grad, &after.exp_avg, &after.exp_avg_sq};
  for (const std::vector<T>* each : ends) ASSERT_EQ(each->back(), T(-7)) << "written past the end";
  ASSERT_EQ(after.weight.back(), 0x1234);
  if (!before.narrow) {
    ASSERT_EQ(after.weight, before.weight);
  }
  ASSERT_EQ(after.grad, before.grad);
}

std::vector<double> numbers(const std::string& list) {
  std::vector<double> values;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) values.push_back(std::stod(item));
  return values;
}
template <class T>
void assign(std::vector<T>& to, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) to[i] = static_cast<T>(values[i]);
}
template <class T>
double distance(const std::vector<T>& ours, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(ours[i]) - expected[i], 2);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}

// Six clipped steps of the golden file, in T, all parameters in one table.
template <class T>
void run_golden(double limit) {
  const GoldenFile golden("optim_adamw.safetensors");
  ThreadPool pool(2, false);
  const StreamHandle stream{DeviceKind::Cpu, nullptr, &pool};
  const std::vector<double> rates = numbers(golden.metadata.at("lr"));
  const std::vector<std::string> names = {"w", "rows", "bias"};
  std::vector<Parameter<T>> parameters;
  double decay = 0;
  for (const std::string& name : names) {
    const std::vector<double>& start = golden.values("param0." + name);
    parameters.emplace_back(static_cast<std::int64_t>(start.size()), 1, golden.number("weight_decay." + name) != 0, false);
    Parameter<T>& p = parameters.back();
    assign(p.master, start), assign(p.exp_avg, std::vector<double>(start.size())), assign(p.exp_avg_sq, std::vector<double>(start.size()));
    decay = std::max(decay, golden.number("weight_decay." + name));
  }
  const Table table = table_of(parameters);
  ASSERT_EQ(rates.size(), 6u);
  for (std::size_t step = 0; step < rates.size(); ++step) {
    const std::string number = std::to_string(step);
    for (std::size_t i = 0; i < names.size(); ++i) assign(parameters[i].grad, golden.values("grad." + number + "." + names[i]));
    const Norm partial = norm_of(table, 2);
    const auto squared = std::make_unique<double>(0), scale = std::make_unique<double>(0), norm = std::make_unique<double>(0);
    const auto flag = std::make_unique<std::int32_t>(0);
    under_test::ordered_sum({3, partial.partials.data(), squared.get()}, stream);
    under_test::clip_scale({squared.get(), golden.number("clip_grad"), scale.get(), norm.get(), flag.get()}, stream);
    EXPECT_NEAR(*norm, golden.values("grad_norm." + number)[0], 1e-12 * *norm);
    EXPECT_EQ(*flag, 0);
    kernels::MultiTensorAdamwArgs args;
    args.table = table.view();
    args.lr = rates[step], args.beta1 = golden.number("beta1"), args.beta2 = golden.number("beta2");
    args.epsilon = golden.number("eps"), args.weight_decay = decay, args.step = static_cast<std::int64_t>(step) + 1;
    args.grad_scale = scale.get(), args.skip_flag = flag.get();
    under_test::multi_tensor_adamw(args, stream);
    for (std::size_t i = 0; i < names.size(); ++i)
      EXPECT_LT(distance(parameters[i].master, golden.values("param." + number + "." + names[i])), limit) << names[i] << " step " << step;
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_LT(distance(parameters[i].exp_avg, golden.values("exp_avg." + names[i])), limit) << names[i];
    EXPECT_LT(distance(parameters[i].exp_avg_sq, golden.values("exp_avg_sq." + names[i])), limit) << names[i];
  }
}

class MultiTensorTargets : public test::KernelTest {};
TEST_P(MultiTensorTargets, six_clipped_steps_equal_the_golden_file_in_fp32) { run_golden<float>(1e-6); }
TEST_P(MultiTensorTargets, six_clipped_steps_equal_the_golden_file_in_fp64) { run_golden<double>(1e-12); }

template <class T>
void expect_adamw_at_every_size(std::int64_t shift) {
  const std::vector<Parameter<T>> before = parameters_of<T>(kSizes, shift);
  std::vector<Parameter<T>> after = before;
  adamw(after);
  for (std::size_t i = 0; i < before.size(); ++i) expect_adamw(before[i], after[i]);
}
TEST_P(MultiTensorTargets, adamw_equals_a_plain_loop_at_odd_sizes_and_rewrites_bf16_weights) {
  expect_adamw_at_every_size<float>(0);
  expect_adamw_at_every_size<double>(0);
}
TEST_P(MultiTensorTargets, adamw_takes_storage_that_is_not_aligned) {
  for (const std::int64_t shift : {1, 2, 3}) expect_adamw_at_every_size<float>(shift);
  expect_adamw_at_every_size<double>(1);
}

TEST_P(MultiTensorTargets, norm_keeps_one_exact_partial_a_chunk) {
  std::vector<Parameter<float>> parameters = parameters_of<float>(kSizes);
  const Table table = table_of(parameters);
  const Norm norm = norm_of(table, 2);
  for (std::size_t c = 0; c < table.chunks.size(); ++c) {
    const MultiTensorChunk& chunk = table.chunks[c];
    double expected = 0;
    for (std::int64_t i = 0; i < chunk.count; ++i)
      expected += std::pow(static_cast<double>(parameters[static_cast<std::size_t>(chunk.tensor)].grad[static_cast<std::size_t>(chunk.begin + i)]), 2);
    EXPECT_NEAR(norm.partials[c], expected, 1e-12 * expected) << c;
    EXPECT_EQ(norm.nonfinite[c], 0) << c;
  }
  EXPECT_EQ(norm_of(table, 1).partials, norm.partials);
  EXPECT_EQ(norm_of(table, 3).partials, norm.partials);
}
DELTRON_EVERY_TARGET(MultiTensorTargets);

TEST(MultiTensor, bits_depend_neither_on_grouping_nor_on_layout_nor_on_threads) {
  const std::vector<Parameter<float>> before = parameters_of<float>(kSizes);
  std::vector<Parameter<float>> together = before;
  const Norm norm = norm_of(table_of(together), 1);
  adamw(together, {.threads = 1});
  for (const int threads : {2, 3}) {
    std::vector<Parameter<float>> again = before;
    adamw(again, {.threads = threads});
    for (std::size_t i = 0; i < again.size(); ++i) ASSERT_EQ(again[i].state(), together[i].state());
  }
  std::vector<double> alone_partials;
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::vector<Parameter<float>> alone = {before[i]};
    const Norm one = norm_of(table_of(alone), 2);
    alone_partials.insert(alone_partials.end(), one.partials.begin(), one.partials.end());
    adamw(alone);
    ASSERT_EQ(alone[0].state(), together[i].state()) << before[i].count;
  }
  EXPECT_EQ(alone_partials, norm.partials);
  std::vector<Parameter<float>> shifted = parameters_of<float>(kSizes, 1);
  EXPECT_EQ(norm_of(table_of(shifted), 2).partials, norm.partials);
  adamw(shifted);
  for (std::size_t i = 0; i < shifted.size(); ++i) ASSERT_EQ(shifted[i].state(), together[i].state()) << "not aligned, " << kSizes[i];
}

TEST(MultiTensor, ten_thousand_small_tensors_in_one_table) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < 10000; ++i) sizes.push_back(1 + i * 7 % 37);
  const std::vector<Parameter<float>> before = parameters_of<float>(sizes);
  std::vector<Parameter<float>> after = before;
  const Norm norm = norm_of(table_of(after), 2);
  ASSERT_EQ(norm.partials.size(), sizes.size());
  adamw(after);
  for (std::size_t i = 0; i < before.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(expect_adamw(before[i], after[i])) << i;
    double expected = 0;
    for (std::int64_t j = 0; j < sizes[i]; ++j) expected += std::pow(static_cast<double>(before[i].grad[static_cast<std::size_t>(j)]), 2);
    ASSERT_NEAR(norm.partials[i], expected, 1e-12 * expected) << i;
  }
}

TEST(MultiTensor, fp32_and_fp64_share_a_table) {
  const Parameter<float> narrow(1000, 1);
  const Parameter<double> wide(kNormBlock + 3, 2, false, false);
  Parameter<float> narrow_after = narrow;
  Parameter<double> wide_after = wide;
  const Table table({narrow_after.entry(), wide_after.entry(), narrow_after.entry()});
  const Norm norm = norm_of(table, 2);
  for (std::size_t c = 0; c < 4; ++c) EXPECT_GT(norm.partials[c], 0) << c;
  EXPECT_EQ(norm.partials[3], norm.partials[0]);
  ThreadPool pool(2, false);
  const Table two({narrow_after.entry(), wide_after.entry()});
  const auto scale = std::make_unique<double>(0.5);
  kernels::MultiTensorAdamwArgs args;
  args.table = two.view(), args.lr = 0.01, args.weight_decay = 0.1, args.step = 7, args.grad_scale = scale.get();
  under_test::multi_tensor_adamw(args, {DeviceKind::Cpu, nullptr, &pool});
  expect_adamw(narrow, narrow_after);
  expect_adamw(wide, wide_after);
}

TEST(MultiTensor, a_nan_or_an_infinity_at_any_place_is_counted_in_its_chunk) {
  const std::int64_t count = kNormBlock + 1029;
  for (const std::int64_t shift : {0, 1}) {
    std::vector<Parameter<float>> parameters;
    parameters.emplace_back(5, 1);
    parameters.emplace_back(count, 2, true, true, shift);
    const Table table = table_of(parameters);
    std::vector<float>& grad = parameters[1].grad;
    for (const std::int64_t place : std::vector<std::int64_t>{0, 1, 3, 4, 255, 1023, 1024, 4095, 16383, 40000, kNormBlock - 1, kNormBlock, kNormBlock + 1023,
                                                              count - 6, count - 5, count - 1}) {
      const std::size_t chunk = place < kNormBlock ? 1 : 2;
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
        const auto at = static_cast<std::size_t>(shift + place);
        const float kept = grad[at];
        grad[at] = bad;
        const Norm norm = norm_of(table, 2);
        for (std::size_t c = 0; c < 3; ++c) {
          ASSERT_EQ(norm.nonfinite[c], c == chunk ? 1 : 0) << place;
          ASSERT_EQ(std::isfinite(norm.partials[c]), c != chunk) << place;
        }
        grad[at] = kept;
      }
    }
    grad.assign(grad.size(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(norm_of(table, 2).nonfinite, (std::vector<std::int64_t>{0, kNormBlock, 1029}));
  }
}

TEST(MultiTensor, a_set_skip_flag_leaves_everything_as_it_is) {
  const std::vector<Parameter<float>> before = parameters_of<float>({1, 100, kNormBlock + 5});
  std::vector<Parameter<float>> after = before;
  adamw(after, {.skip = 1});
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].state(), before[i].state());
  ThreadPool pool(2, false);
  const Table table = table_of(after);
  const auto flag = std::make_unique<std::int32_t>(1);
  kernels::MultiTensorSgdArgs args;
  args.table = table.view(), args.lr = 0.1, args.skip_flag = flag.get();
  under_test::multi_tensor_sgd(args, {DeviceKind::Cpu, nullptr, &pool});
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].state(), before[i].state());
}

TEST(MultiTensor, an_empty_table_and_empty_tensors_are_legal) {
  std::vector<Parameter<float>> none, empty = parameters_of<float>({0, 3, 0});
  adamw(none);
  EXPECT_TRUE(norm_of(table_of(none), 1).partials.empty());
  const std::vector<Parameter<float>> before = empty;
  adamw(empty);
  expect_adamw(before[1], empty[1]);
  EXPECT_EQ(norm_of(table_of(empty), 1).partials.size(), 1u);
}

TEST(MultiTensor, sgd_equals_a_plain_loop_with_decay_clipping_and_weight) {
  ThreadPool pool(2, false);
  const std::vector<Parameter<float>> before = parameters_of<float>({1, 37, 16384 + 3, kNormBlock + 6});
  std::vector<Parameter<float>> after = before;
  const Table table = table_of(after);
  const auto scale = std::make_unique<double>(0.25);
  kernels::MultiTensorSgdArgs args;
  args.table = table.view(), args.lr = 0.1, args.weight_decay = 0.01, args.grad_scale = scale.get();
  under_test::multi_tensor_sgd(args, {DeviceKind::Cpu, nullptr, &pool});
  for (std::size_t p = 0; p < before.size(); ++p) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(before[p].count); ++i) {
      const double w0 = before[p].master[i], w = w0 - 0.1 * (0.25 * before[p].grad[i] + (before[p].decays ? 0.01 * w0 : 0));
      ASSERT_NEAR(after[p].master[i], w, 1e-6) << i;
      if (before[p].narrow) {
        ASSERT_EQ(after[p].weight[i], to_bfloat16(after[p].master[i]).bits) << i;
      }
    }
    EXPECT_EQ(after[p].exp_avg, before[p].exp_avg);
    EXPECT_EQ(after[p].master.back(), -7);
    EXPECT_EQ(after[p].weight.back(), 0x1234);
  }
}

}  // namespace
}  // namespace deltron
