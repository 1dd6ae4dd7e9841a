// What the tests of tensor, autograd, nn and model share: small contexts, random tensors, bytes for comparison bit by bit, messages of
// errors. Knows no layer above tensor.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/tensor/context.h"
#include "src/tensor/tensor.h"

#ifndef DELTRON_TEST_CONTEXT_ON_CUDA
#define DELTRON_TEST_CONTEXT_ON_CUDA 0
#endif

namespace deltron::test {

// Where tests run that name no device: on the CPU, or, in the binary built with DELTRON_TEST_CONTEXT_ON_CUDA, on the GPU.
inline constexpr bool kContextOnCuda = DELTRON_TEST_CONTEXT_ON_CUDA != 0;
inline constexpr DeviceKind kTestDevice = kContextOnCuda ? DeviceKind::Cuda : DeviceKind::Cpu;

inline ContextOptions small_context(int threads = 1, DeviceKind device = kTestDevice) {
  ContextOptions options;
  options.device = device;
  options.threads = threads;
  options.pin_threads = false;
  return options;
}

inline std::vector<double> random_values(std::int64_t count, std::uint64_t seed, double scale = 1.0, double shift = 0.0) {
  RngStream stream({seed, 0, kRngSiteData}, 1);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = shift + scale * stream.normal();
  return values;
}

inline Tensor random_tensor(Context& ctx, const Shape& shape, DType dtype, std::uint64_t seed, double scale = 1.0, const char* name = "random",
                            double shift = 0.0) {
  return make_tensor(ctx, shape, dtype, random_values(shape_count(shape), seed, scale, shift), name);
}

inline Tensor int_tensor(Context& ctx, const std::vector<std::int32_t>& values, const char* name = "ids") {
  Tensor tensor = Tensor::empty(ctx, {static_cast<std::int64_t>(values.size())}, DType::I32, name, MemoryTag::Data);
  copy_from_host(ctx, tensor, values.data());
  return tensor;
}

// The bits of a tensor of any strides, row by row of its shape.
inline std::vector<std::uint64_t> bits_of(Context& ctx, const Tensor& tensor) {
  std::vector<std::uint64_t> bits;
  for (double value : to_doubles(ctx, tensor)) {  // widening is exact, so equal bits stay equal and different ones differ
    std::uint64_t word;
    std::memcpy(&word, &value, sizeof(word));
    bits.push_back(word);
  }
  return bits;
}

inline double largest(const std::vector<double>& values) {
  double most = 0;
  for (double value : values) most = std::max(most, std::fabs(value));
  return most;
}

// Largest difference over the largest value of `expected`.
inline double relative_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(actual[i] - expected[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst / std::max(largest(expected), 1e-30);
}

// What the Error says that `function` throws; "" (and a failed test) if it throws none.
template <class F>
std::string message_of(const F& function, ErrorCode code = ErrorCode::InternalFault) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

inline ::testing::AssertionResult contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) return ::testing::AssertionFailure() << "'" << part << "' is not in: " << text;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace deltron::test
