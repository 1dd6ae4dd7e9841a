// kernels/adamw and the clipping it is used with: against independent expected values and plain loops.
#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <sstream>

#include "kernels/reduce.h"
#include "src/base/bfloat16.h"
#include "src/base/thread_pool.h"
#include "tests/support/golden_file.h"
#include "tests/support/head_buffer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using test::error_ratio;
using test::GoldenFile;
using test::random_values;

std::vector<double> numbers(const std::string& list) {
  std::vector<double> values;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) values.push_back(std::stod(item));
  return values;
}

template <class T>
std::vector<T> as(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}
template <class T>
std::vector<double> wide(const std::vector<T>& values) {
  return std::vector<double>(values.begin(), values.end());
}

template <class T>
struct State {
  std::vector<T> master, exp_avg, exp_avg_sq;
};

// Six clipped steps of the golden file, in T.
template <class T>
void run_golden(double limit) {
  const GoldenFile golden("optim_adamw.safetensors");
  const DType dtype = sizeof(T) == 8 ? DType::F64 : DType::F32;
  ThreadPool pool(2, false);
  const StreamHandle stream{DeviceKind::Cpu, nullptr, &pool};
  const std::vector<double> rates = numbers(golden.metadata.at("lr"));
  const std::vector<std::string> names = {"w", "rows", "bias"};
  std::map<std::string, State<T>> states;
  for (const std::string& name : names) {
    const std::vector<T> start = as<T>(golden.values("param0." + name));
    states[name] = State<T>{start, std::vector<T>(start.size()), std::vector<T>(start.size())};
  }
  ASSERT_EQ(rates.size(), 6u);
  for (std::size_t step = 0; step < rates.size(); ++step) {
    const std::string number = std::to_string(step);
    std::vector<double> partials;
    for (const std::string& name : names) {
      const std::vector<T> grad = as<T>(golden.values("grad." + number + "." + name));
      partials.push_back(0);
      under_test::squared_norm({static_cast<std::int64_t>(grad.size()), grad.data(), dtype, &partials.back(), nullptr}, stream);
    }
    const auto squared = std::make_unique<double>(0), scale = std::make_unique<double>(0), norm = std::make_unique<double>(0);
    const auto flag = std::make_unique<std::int32_t>(0);
    under_test::ordered_sum({3, partials.data(), squared.get()}, stream);
    under_test::clip_scale({squared.get(), golden.number("clip_grad"), scale.get(), norm.get(), flag.get()}, stream);
    EXPECT_NEAR(*norm, golden.values("grad_norm." + number)[0], 1e-12 * *norm);
    EXPECT_EQ(*flag, 0);
    for (const std::string& name : names) {
      const std::vector<T> grad = as<T>(golden.values("grad." + number + "." + name));
      State<T>& state = states[name];
      kernels::AdamwArgs args;
      args.count = static_cast<std::int64_t>(grad.size());
      args.dtype = dtype;
      args.master = state.master.data(), args.grad = grad.data();
      args.exp_avg = state.exp_avg.data(), args.exp_avg_sq = state.exp_avg_sq.data();
      args.lr = rates[step], args.beta1 = golden.number("beta1"), args.beta2 = golden.number("beta2");
      args.epsilon = golden.number("eps"), args.weight_decay = golden.number("weight_decay." + name);
      args.step = static_cast<std::int64_t>(step) + 1;
      args.grad_scale = scale.get(), args.skip_flag = flag.get();
      under_test::adamw(args, stream);
      EXPECT_LT(error_ratio(wide(state.master), golden.values("param." + number + "." + name)), limit) << name << " step " << step;
    }
  }
  for (const std::string& name : names) {
    EXPECT_LT(error_ratio(wide(states[name].exp_avg), golden.values("exp_avg." + name)), limit) << name;
    EXPECT_LT(error_ratio(wide(states[name].exp_avg_sq), golden.values("exp_avg_sq." + name)), limit) << name;
  }
}

class AdamwTargets : public test::KernelTest {};
TEST_P(AdamwTargets, six_clipped_steps_equal_the_golden_file_in_fp32) { run_golden<float>(1e-6); }
TEST_P(AdamwTargets, six_clipped_steps_equal_the_golden_file_in_fp64) { run_golden<double>(1e-12); }
DELTRON_EVERY_TARGET(AdamwTargets);

struct Updated {
  std::vector<float> master, exp_avg, exp_avg_sq;
  std::vector<std::uint16_t> weight;
};

Updated update(std::int64_t count, int threads, std::int32_t skip, double scale) {
  ThreadPool pool(threads, false);
  const StreamHandle stream{DeviceKind::Cpu, nullptr, &pool};
  Updated r{as<float>(random_values(DType::F32, count, 1)), as<float>(random_values(DType::F32, count, 2, 0.1)), {}, {}};
  for (double value : random_values(DType::F32, count, 3, 0.1)) r.exp_avg_sq.push_back(static_cast<float>(value * value));
  r.weight.assign(static_cast<std::size_t>(count) + 1, 0x1234);
  const std::vector<float> grad = as<float>(random_values(DType::F32, count, 4));
  const auto factor = std::make_unique<double>(scale);
  const auto flag = std::make_unique<std::int32_t>(skip);
  kernels::AdamwArgs args;
  args.count = count;
  args.master = r.master.data(), args.grad = grad.data(), args.exp_avg = r.exp_avg.data(), args.exp_avg_sq = r.exp_avg_sq.data();
  args.weight = r.weight.data();
  args.lr = 0.01, args.weight_decay = 0.1, args.step = 7, args.grad_scale = factor.get(), args.skip_flag = flag.get();
  under_test::adamw(args, stream);
  return r;
}

TEST(Adamw, equals_a_plain_loop_at_odd_sizes_and_rewrites_the_bf16_weight) {
  for (std::int64_t count : {1, 15, 17, 1000, 16384 + 3}) {
    const Updated r = update(count, 2, 0, 0.5);
    const std::vector<double> w0 = random_values(DType::F32, count, 1), m0 = random_values(DType::F32, count, 2, 0.1);
    const std::vector<double> s0 = random_values(DType::F32, count, 3, 0.1), g0 = random_values(DType::F32, count, 4);
    for (std::int64_t i = 0; i < count; ++i) {
      const double g = 0.5 * g0[i], m = 0.9 * m0[i] + 0.1 * g, v = 0.999 * static_cast<float>(s0[i] * s0[i]) + 0.001 * g * g;
      const double mean = m / (1 - std::pow(0.9, 7)), root = std::sqrt(v / (1 - std::pow(0.999, 7)));
      const double w = w0[i] - 0.01 * 0.1 * w0[i] - 0.01 * mean / (root + 1e-8);
      ASSERT_NEAR(r.master[i], w, 1e-6 * (std::abs(w0[i]) + 0.1)) << i;
      ASSERT_EQ(r.weight[i], to_bfloat16(r.master[i]).bits) << i;
    }
    EXPECT_EQ(r.weight.back(), 0x1234) << "written past the end";
  }
}

TEST(Adamw, bits_do_not_depend_on_the_thread_count) {
  const Updated one = update(50001, 1, 0, 1), two = update(50001, 2, 0, 1), three = update(50001, 3, 0, 1);
  EXPECT_TRUE(one.master == two.master && one.exp_avg == two.exp_avg && one.exp_avg_sq == two.exp_avg_sq &&
              one.weight == two.weight);
  EXPECT_TRUE(one.master == three.master && one.weight == three.weight);
}

TEST(Adamw, a_set_skip_flag_leaves_everything_as_it_is) {
  const Updated r = update(100, 2, 1, 1);
  EXPECT_EQ(wide(r.master), random_values(DType::F32, 100, 1));
  EXPECT_EQ(wide(r.exp_avg), random_values(DType::F32, 100, 2, 0.1));
  EXPECT_EQ(r.weight, std::vector<std::uint16_t>(101, 0x1234));
}

TEST(Sgd, equals_a_plain_loop_with_decay_clipping_and_weight) {
  ThreadPool pool(2, false);
  const StreamHandle stream{DeviceKind::Cpu, nullptr, &pool};
  const std::vector<double> w0 = random_values(DType::F32, 37, 1), g0 = random_values(DType::F32, 37, 2);
  std::vector<float> master = as<float>(w0), weight(37);
  const std::vector<float> grad = as<float>(g0);
  const auto scale = std::make_unique<double>(0.25);
  kernels::SgdArgs args;
  args.count = 37, args.master = master.data(), args.grad = grad.data(), args.weight = weight.data();
  args.weight_dtype = DType::F32, args.lr = 0.1, args.weight_decay = 0.01, args.grad_scale = scale.get();
  under_test::sgd(args, stream);
  for (std::size_t i = 0; i < 37; ++i) ASSERT_NEAR(master[i], w0[i] - 0.1 * (0.25 * g0[i] + 0.01 * w0[i]), 1e-6);
  EXPECT_EQ(master, weight);
}

}  // namespace
}  // namespace deltron
