// Device memory of a large test: filled with a pattern that repeats, compared with what a small problem gave, without a host copy of
// the whole. 0xff bytes (NaN in any floating type) lie on both sides and, at first, in it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/views.h"
#include "tests/kernels/gpu/device_mirror.h"
#include "tests/support/compare.h"
#include "tests/support/typed_buffer.h"

namespace deltron::test {

// Elements past which a 32-bit index no longer reaches.
inline constexpr std::int64_t kPast32Bits = std::int64_t{1} << 31;

class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DType dtype, std::int64_t count) : dtype_(dtype), count_(count), bytes_(static_cast<std::size_t>(count) * dtype_size(dtype)) {
    require_cuda(cudaMalloc(reinterpret_cast<void**>(&base_), bytes_ + 2 * kGuard), "cudaMalloc");
    require_cuda(cudaMemset(base_, 0xff, bytes_ + 2 * kGuard), "cudaMemset");
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(base_, other.base_), std::swap(dtype_, other.dtype_), std::swap(count_, other.count_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceArray() {
    if (base_ != nullptr) cudaFree(base_);
  }

  char* data() const { return base_ + kGuard; }
  char* at(std::int64_t i) const { return data() + static_cast<std::size_t>(i) * dtype_size(dtype_); }
  std::int64_t count() const { return count_; }
  std::size_t bytes() const { return bytes_; }

  // `pattern`, again and again to the end.
  DeviceArray& repeat(const std::vector<char>& pattern) {
    std::size_t have = std::min(pattern.size(), bytes_);
    require_cuda(cudaMemcpy(data(), pattern.data(), have, cudaMemcpyHostToDevice), "upload");
    while (have < bytes_) {
      const std::size_t more = std::min(have, bytes_ - have);
      require_cuda(cudaMemcpy(data() + have, data(), more, cudaMemcpyDeviceToDevice), "copy");
      have += more;
    }
    return *this;
  }
  DeviceArray& repeat(const std::vector<double>& values) {
    TypedBuffer buffer(dtype_, static_cast<std::int64_t>(values.size()), 0);
    for (std::size_t i = 0; i < values.size(); ++i) buffer.set(static_cast<std::int64_t>(i), values[i]);
    return repeat(buffer.bytes());
  }
  // As it was at first: 0xff.
  void spoil() const { require_cuda(cudaMemset(base_, 0xff, bytes_ + 2 * kGuard), "cudaMemset"); }
  DeviceArray& zero() {
    require_cuda(cudaMemset(data(), 0, bytes_), "cudaMemset");
    return *this;
  }

  std::vector<char> download(std::int64_t first, std::int64_t elements) const {
    std::vector<char> result(static_cast<std::size_t>(elements) * dtype_size(dtype_));
    require_cuda(cudaMemcpy(result.data(), at(first), result.size(), cudaMemcpyDeviceToHost), "download");
    return result;
  }
  std::vector<char> download() const { return download(0, count_); }
  std::vector<double> values(std::int64_t first, std::int64_t elements) const {
    const std::vector<char> raw = download(first, elements);
    TypedBuffer buffer(dtype_, elements, 0);
    std::memcpy(buffer.data(), raw.data(), raw.size());
    std::vector<double> result(static_cast<std::size_t>(elements));
    for (std::int64_t i = 0; i < elements; ++i) result[static_cast<std::size_t>(i)] = buffer.get(i);
    return result;
  }
  std::vector<double> values() const { return values(0, count_); }

  // Nothing around it was written.
  bool untouched() const {
    std::vector<char> guard(kGuard);
    for (const char* side : {base_, data() + bytes_}) {
      require_cuda(cudaMemcpy(guard.data(), side, kGuard, cudaMemcpyDeviceToHost), "download");
      if (std::any_of(guard.begin(), guard.end(), [](char c) { return c != '\xff'; })) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 512;
  char* base_ = nullptr;
  DType dtype_ = DType::F32;
  std::int64_t count_ = 0;
  std::size_t bytes_ = 0;
};

// Pinned memory of the host, to read much of the device through.
struct Pinned {
  char* data = nullptr;
  explicit Pinned(std::size_t bytes) { require_cuda(cudaHostAlloc(reinterpret_cast<void**>(&data), bytes, 0), "pinned memory"); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { cudaFreeHost(data); }
};

// Two arrays of one size hold the same bytes.
inline bool same_bytes(const DeviceArray& a, const DeviceArray& b) {
  const std::size_t piece = std::min<std::size_t>(a.bytes(), std::size_t{32} << 20);
  const Pinned one(piece), two(piece);
  for (std::size_t from = 0; from < a.bytes(); from += piece) {
    const std::size_t bytes = std::min(piece, a.bytes() - from);
    require_cuda(cudaMemcpy(one.data, a.data() + from, bytes, cudaMemcpyDeviceToHost), "download");
    require_cuda(cudaMemcpy(two.data, b.data() + from, bytes, cudaMemcpyDeviceToHost), "download");
    if (std::memcmp(one.data, two.data, bytes) != 0) return false;
  }
  return a.bytes() == b.bytes();
}

// Every element of `large` is that of `small`, which repeats: all of it is read, in pieces, through pinned memory.
inline testing::AssertionResult repeats(const DeviceArray& large, const DeviceArray& small) {
  const std::vector<char> pattern = small.download();
  if (pattern.empty() || !large.untouched() || !small.untouched()) return testing::AssertionFailure() << "the surroundings were written";
  const std::size_t piece = (std::size_t{64} << 20) / pattern.size() * pattern.size() + pattern.size();
  const Pinned pinned(std::min(piece, large.bytes()));
  for (std::size_t from = 0; from < large.bytes(); from += piece) {
    const std::size_t bytes = std::min(piece, large.bytes() - from);
    require_cuda(cudaMemcpy(pinned.data, large.data() + from, bytes, cudaMemcpyDeviceToHost), "download");
    for (std::size_t i = 0; i < bytes; i += pattern.size()) {
      const std::size_t part = std::min(pattern.size(), bytes - i);
      if (std::memcmp(pinned.data + i, pattern.data(), part) == 0) continue;
      std::size_t first = 0;
      while (pinned.data[i + first] == pattern[first]) ++first;
      return testing::AssertionFailure() << "byte " << from + i + first << " of " << large.bytes() << " differs from byte " << first << " of the small run's "
                                         << pattern.size();
    }
  }
  return testing::AssertionSuccess();
}

// Sums over all rows: `times` as much as the small run's, to rounding.
inline void expect_multiple(const DeviceArray& large, const DeviceArray& small, double times, double limit, const char* what) {
  const std::vector<double> a = large.values(), b = small.values();
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - times * b[i]) * (a[i] - times * b[i]);
    norm += times * b[i] * times * b[i];
  }
  EXPECT_GT(norm, 0) << what;
  EXPECT_LE(std::sqrt(error / norm), limit) << what;
  EXPECT_TRUE(large.untouched()) << what;
}

inline StreamHandle device_stream() {
  StreamHandle stream;
  stream.device = DeviceKind::Cuda;
  return stream;
}
inline void finish(const char* what) {
  require_cuda(cudaGetLastError(), what);
  require_cuda(cudaDeviceSynchronize(), what);
}

// Skipped where there is no GPU, or too little free memory on it; with DELTRON_REQUIRE_GPU set that is a failure.
class LargeGpu : public testing::Test {
 protected:
  void SetUp() override { need(1); }
  static std::string lacking(double gib) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return cudaGetLastError(), "no GPU on this machine";
    std::size_t free = 0, total = 0;
    require_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (static_cast<double>(free) >= gib * (1 << 30)) return {};
    return std::to_string(free >> 20) + " MiB of GPU memory are free, too little for this size";
  }
  void need(double gib) {
    const std::string problem = lacking(gib);
    if (problem.empty()) return;
    if (std::getenv("DELTRON_REQUIRE_GPU") != nullptr) FAIL() << "DELTRON_REQUIRE_GPU is set: " << problem;
    GTEST_SKIP() << problem;
  }
};
#define DELTRON_NEED_GIB(gib)                     \
  do {                                            \
    need(gib);                                    \
    if (HasFatalFailure() || IsSkipped()) return; \
  } while (false)

}  // namespace deltron::test
