// What all CPU kernel tests share: one run a Highway target, storage types, tolerances, pools, finite differences.
// Link with deltron_hwy. Knows no kernel.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/simd_targets.h"
#include "hwy/highway.h"
#include "src/base/rng.h"
#include "src/base/stream.h"
#include "src/base/thread_pool.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/under_test.h"

namespace deltron::test {

// Every compiled target that this processor can run.
inline std::vector<std::int64_t> kernel_targets() {
  std::vector<std::int64_t> targets;
  for (int bit = 0; bit < 63; ++bit) {
    const std::int64_t target = std::int64_t{1} << bit;
    if ((static_cast<std::int64_t>(HWY_TARGETS) & target) != 0 && (hwy::SupportedTargets() & target) != 0) targets.push_back(target);
    if (kOnCuda && !targets.empty()) break;  // the CPU's instruction set does not matter there: once is enough
  }
  return targets;
}
inline std::string target_test_name(const ::testing::TestParamInfo<std::int64_t>& info) { return hwy::TargetName(info.param); }

// A test of vector kernels: TEST_P(<fixture>, ...) and DELTRON_EVERY_TARGET(<fixture>).
class KernelTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { choose(GetParam()); }
  void TearDown() override { choose(0); }

 private:
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};
#define DELTRON_EVERY_TARGET(fixture) \
  INSTANTIATE_TEST_SUITE_P(targets, fixture, ::testing::ValuesIn(::deltron::test::kernel_targets()), ::deltron::test::target_test_name)

// function(S{}) for every storage type of the CPU kernels.
template <class F>
void for_each_storage(const F& function) {
  {
    SCOPED_TRACE("fp32");
    function(float{});
  }
  {
    SCOPED_TRACE("fp64");
    function(double{});
  }
  {
    SCOPED_TRACE("bf16");
    function(bfloat16{});
  }
}

// Storage type of parameters and statistics that go with S.
template <class S>
using ComputeType = kernels::cpu::Compute<S>;

// Error allowed on a value stored as S that was formed in S's compute type from inputs of order one.
template <class S>
constexpr double tolerance() {
  return std::is_same_v<S, double> ? 1e-12 : std::is_same_v<S, float> ? 4e-6 : 5e-3;
}

template <class S>
void expect_close(const std::vector<double>& got, const std::vector<double>& want, const std::string& what, double factor = 1) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed = factor * tolerance<S>() * (1 + std::fabs(want[i]));
    ASSERT_TRUE(std::fabs(got[i] - want[i]) <= allowed) << what << "[" << i << "] = " << got[i] << ", reference " << want[i];
  }
}

// Deterministic values in [-1, 1).
inline double noise(std::uint64_t stream, std::int64_t index) {
  return 2.0 * uniform_from_word(rng_words(0x5eed, stream, 0, static_cast<std::uint32_t>(index)).word[0]) - 1.0;
}

// Bytes of run(stream) are the same for 1, 2 and 3 threads and when repeated. `run` returns the output's bytes.
template <class F>
void expect_same_bits(const F& run) {
  std::vector<unsigned char> first;
  for (const int threads : {1, 2, 3, 2}) {
    ThreadPool pool(threads, false);
    StreamHandle stream;
    stream.pool = &pool;
    const std::vector<unsigned char> bytes = run(stream);
    if (first.empty()) first = bytes;
    ASSERT_TRUE(bytes == first) << "bits differ with " << threads << " threads";
  }
}

// d(sum of weights * f(x))/dx by central differences, f: vector -> vector.
template <class F>
std::vector<double> finite_differences(const F& f, std::vector<double> x, const std::vector<double>& weights, double step = 1e-5) {
  const auto weighted = [&] {
    const std::vector<double> y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i];
    return sum;
  };
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double up = weighted();
    x[i] = at - step;
    const double down = weighted();
    x[i] = at;
    gradient[i] = (up - down) / (2 * step);
  }
  return gradient;
}
inline void expect_gradient(const std::vector<double>& got, const std::vector<double>& differences, const std::string& what) {
  ASSERT_EQ(got.size(), differences.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], differences[i], 1e-7 * (1 + std::fabs(differences[i]))) << what << "[" << i << "]";
  }
}

}  // namespace deltron::test
