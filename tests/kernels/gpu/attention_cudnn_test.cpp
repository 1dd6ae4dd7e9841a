// kernels/cuda/attention_cudnn: cuDNN's attention against the plain double reference, as dense batches and as ragged documents,
// with strided views inside larger rows of NaN; documents isolated; the same bits run after run; plans chosen once.
#include "kernels/cuda/attention_cudnn.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <string>

#include "kernels/cuda/error.h"
#include "src/base/bfloat16.h"
#include "src/base/check.h"
#include "tests/kernels/gpu/half.h"
#include "tests/support/head_buffer.h"
#include "tests/support/reference_attention.h"

namespace deltron {
namespace {

using kernels::FusedAttentionSchedule;
using test::error_ratio;
using test::ReferenceAttention;

void must(cudaError_t status) { kernels::cuda::check_status(static_cast<int>(status), "test"); }

// A [tokens, heads, dim] tensor on the device, `gap` elements between rows; everything outside it, and an output before it is
// written, is NaN.
class DeviceHeads {
 public:
  DeviceHeads(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t gap)
      : dtype_(dtype),
        tokens_(tokens),
        heads_(heads),
        dim_(dim),
        stride_(heads * dim + gap),
        host_(static_cast<std::size_t>(tokens * stride_ + 2 * kGuard), kNan) {
    must(cudaMalloc(reinterpret_cast<void**>(&device_), bytes()));
    must(cudaMemcpy(device_, host_.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~DeviceHeads() { cudaFree(device_); }
  DeviceHeads(const DeviceHeads&) = delete;
  DeviceHeads& operator=(const DeviceHeads&) = delete;

  void set(const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) host_[place(i)] = test::to_half(dtype_, values[i]);
    must(cudaMemcpy(device_, host_.data(), bytes(), cudaMemcpyHostToDevice));
  }
  // Also checks that nothing outside was written.
  std::vector<double> get() {
    std::vector<std::uint16_t> now(host_.size());
    must(cudaMemcpy(now.data(), device_, bytes(), cudaMemcpyDeviceToHost));
    std::vector<double> values(static_cast<std::size_t>(tokens_ * heads_ * dim_));
    std::vector<bool> inside(now.size(), false);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = test::from_half(dtype_, now[place(i)]);
      inside[place(i)] = true;
    }
    for (std::size_t i = 0; i < now.size(); ++i) intact_ = intact_ && (inside[i] || now[i] == kNan);
    return values;
  }
  bool intact() const { return intact_; }
  kernels::HeadView view() const { return {device_ + kGuard, 0, stride_, dim_}; }
  kernels::MutableHeadView out() { return {device_ + kGuard, 0, stride_, dim_}; }

 private:
  static constexpr std::int64_t kGuard = 512;
  static constexpr std::uint16_t kNan = 0xffff;
  std::size_t bytes() const { return host_.size() * sizeof(std::uint16_t); }
  std::size_t place(std::size_t i) const {
    const auto row = static_cast<std::size_t>(heads_ * dim_);
    return static_cast<std::size_t>(kGuard) + i / row * static_cast<std::size_t>(stride_) + i % row;
  }
  DType dtype_;
  std::int64_t tokens_, heads_, dim_, stride_;
  std::vector<std::uint16_t> host_;
  std::uint16_t* device_ = nullptr;
  bool intact_ = true;
};

// Raw device memory filled with NaN bytes.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) must(cudaMalloc(&data_, bytes));
    if (bytes > 0) must(cudaMemset(data_, 0xff, bytes));
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  kernels::Workspace workspace() const { return {data_, static_cast<std::int64_t>(bytes_)}; }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

struct Case {
  DType dtype = DType::BF16;
  std::vector<std::int64_t> lengths{256};
  std::int64_t query_heads = 8, kv_heads = 2, dim = 128, gap = 0;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << dtype_name(c.dtype) << " documents " << c.lengths.size() << " heads " << c.query_heads << "/" << c.kv_heads << " dim "
       << c.dim << " gap " << c.gap;
}

struct Problem {
  explicit Problem(const Case& wanted) : c(wanted) {
    reference.query_heads = c.query_heads;
    reference.kv_heads = c.kv_heads;
    reference.dim = c.dim;
    reference.scale = 1 / std::sqrt(static_cast<double>(c.dim));
    reference.cu_seqlens = {0};
    for (std::int64_t length : c.lengths) reference.cu_seqlens.push_back(reference.cu_seqlens.back() + length);
    tokens = reference.cu_seqlens.back();
    const auto draw = [&](std::int64_t heads, std::uint64_t stream) {
      std::vector<double> values = test::random_values(DType::F32, tokens * heads * c.dim, stream);
      for (double& value : values) value = test::from_half(c.dtype, test::to_half(c.dtype, value));
      return values;
    };
    q = draw(c.query_heads, 1), k = draw(c.kv_heads, 2), v = draw(c.kv_heads, 3), d_o = draw(c.query_heads, 4);
  }

  struct Result {
    std::vector<double> o, log_sum_exp, dq, dk, dv;  // log_sum_exp [tokens, query_heads]
    std::int64_t bound = 0, asked = 0;               // workspace of the backward
    bool intact = true;
  };

  Result run(kernels::cuda::FusedAttention& library) const {
    const auto heads = [&](std::int64_t count) { return DeviceHeads(c.dtype, tokens, count, c.dim, c.gap); };
    DeviceHeads bq = heads(c.query_heads), bk = heads(c.kv_heads), bv = heads(c.kv_heads), bdo = heads(c.query_heads),
                o = heads(c.query_heads), dq = heads(c.query_heads), dk = heads(c.kv_heads), dv = heads(c.kv_heads);
    bq.set(q), bk.set(k), bv.set(v), bdo.set(d_o);
    const DeviceBytes lse(static_cast<std::size_t>(tokens * c.query_heads) * sizeof(float));
    const DeviceBytes offsets(reference.cu_seqlens.size() * sizeof(std::int64_t));
    must(cudaMemcpy(offsets.data(), reference.cu_seqlens.data(), reference.cu_seqlens.size() * sizeof(std::int64_t),
                    cudaMemcpyHostToDevice));
    StreamHandle stream;
    stream.device = DeviceKind::Cuda;
    stream.attention = &library;
    kernels::AttentionForwardArgs f;
    f.tokens = tokens, f.query_heads = c.query_heads, f.kv_heads = c.kv_heads, f.dim = c.dim, f.dtype = c.dtype,
    f.scale = reference.scale;
    f.documents = {static_cast<std::int64_t>(c.lengths.size()), static_cast<const std::int64_t*>(offsets.data()),
                   reference.cu_seqlens.data()};
    f.q = bq.view(), f.k = bk.view(), f.v = bv.view(), f.o = o.out(), f.log_sum_exp = lse.data();
    EXPECT_EQ(kernels::fused_attention_refusal(f), "");
    {
      const DeviceBytes space(static_cast<std::size_t>(kernels::cuda::fused_attention_forward_workspace_bytes(f, stream)));
      f.workspace = space.workspace();
      kernels::cuda::fused_attention_forward(f, stream);
      must(cudaDeviceSynchronize());
    }
    kernels::AttentionBackwardArgs b;
    b.tokens = tokens, b.query_heads = c.query_heads, b.kv_heads = c.kv_heads, b.dim = c.dim, b.dtype = c.dtype, b.scale = f.scale;
    b.documents = f.documents, b.q = f.q, b.k = f.k, b.v = f.v, b.o = o.view(), b.d_o = bdo.view(), b.log_sum_exp = lse.data();
    b.dq = dq.out(), b.dk = dk.out(), b.dv = dv.out();
    EXPECT_EQ(kernels::fused_attention_refusal(b), "");
    const DeviceBytes space(static_cast<std::size_t>(kernels::cuda::fused_attention_backward_workspace_bytes(b, stream)));
    b.workspace = space.workspace();
    kernels::cuda::fused_attention_backward(b, stream);
    must(cudaDeviceSynchronize());
    Result r;
    r.o = o.get(), r.dq = dq.get(), r.dk = dk.get(), r.dv = dv.get();
    std::vector<float> raw(static_cast<std::size_t>(tokens * c.query_heads));
    must(cudaMemcpy(raw.data(), lse.data(), raw.size() * sizeof(float), cudaMemcpyDeviceToHost));
    const FusedAttentionSchedule schedule = kernels::fused_attention_schedule(f.documents, c.query_heads, c.kv_heads, false);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < c.query_heads; ++h)
        r.log_sum_exp.push_back(
            static_cast<double>(raw[static_cast<std::size_t>(kernels::fused_log_sum_exp_place(schedule, c.query_heads, t, h))]));
    }
    StreamHandle plan_only;
    r.bound = kernels::cuda::fused_attention_backward_workspace_bytes(b, plan_only);
    r.asked = library.backward_workspace_bytes(b);
    r.intact = o.intact() && dq.intact() && dk.intact() && dv.intact();
    return r;
  }

  Case c;
  ReferenceAttention reference;
  std::int64_t tokens = 0;
  std::vector<double> q, k, v, d_o;
};

// One library object for all tests, as a context has one. Null where cuDNN is not here.
kernels::cuda::FusedAttention* library() {
  static const std::shared_ptr<kernels::cuda::FusedAttention> one =
      kernels::cuda::fused_attention_info().found ? kernels::cuda::make_fused_attention() : nullptr;
  return one.get();
}

#define NEEDS_CUDNN() \
  if (library() == nullptr) GTEST_SKIP() << kernels::cuda::fused_attention_info().problem

void expect_same_bits(const Problem::Result& a, const Problem::Result& b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.log_sum_exp, b.log_sum_exp);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {DType::BF16, {256}, 8, 2, 128, 0},
      {DType::F16, {256}, 8, 2, 128, 0},
      {DType::BF16, {256, 256, 256}, 8, 2, 64, 64},
      {DType::BF16, {192, 192}, 8, 2, 128, 8},  // not a multiple of 128
      {DType::BF16, {100, 100, 100}, 4, 1, 128, 0},
      {DType::BF16, {64}, 4, 4, 64, 0},
      {DType::BF16, {512}, 32, 8, 128, 0},
      {DType::BF16, {256, 256}, 8, 2, 256, 0},
      {DType::BF16, {1}, 8, 2, 128, 0},  // a ragged call of one token
      {DType::BF16, {1, 2, 3, 63, 64, 65, 127, 128, 129, 300}, 8, 2, 128, 0},
      {DType::BF16, {37, 0, 51, 1, 40}, 8, 2, 64, 72},  // empty documents, strided
      {DType::F16, {130, 260, 20}, 8, 2, 128, 16},
      {DType::BF16, {500, 130, 7, 260}, 32, 8, 128, 0},
      {DType::BF16, {300, 150}, 4, 2, 256, 0},
      {DType::BF16, {200, 200}, 4, 2, 256, 0},
      {DType::BF16, {1, 130, 64, 300, 7}, 8, 2, 256, 64},
      {DType::BF16, {300, 20, 128}, 4, 1, 192, 0},
      {DType::BF16, {128, 128, 1}, 8, 8, 64, 0},
      {DType::BF16, {90, 200}, 6, 2, 40, 0},  // a head that is a multiple of 8 alone
  };
  return list;
}

class CudnnAttention : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    NEEDS_CUDNN();
    const Case& c = GetParam();
    const std::string refusal = kernels::fused_attention_refusal(kernels::FusedAttentionQuestion{
        c.dtype, c.query_heads, c.kv_heads, c.dim, 0, 0, true, kernels::cuda::fused_attention_info().number});
    if (!refusal.empty()) GTEST_SKIP() << refusal;
  }
};

TEST_P(CudnnAttention, equals_the_reference_forward_and_backward) {
  const Problem problem(GetParam());
  const auto expected = problem.reference.forward(problem.q, problem.k, problem.v);
  const auto gradients = problem.reference.backward(problem.q, problem.k, problem.v, problem.d_o);
  const Problem::Result ours = problem.run(*library());
  EXPECT_TRUE(ours.intact) << "written outside";
  const double limit =
      GetParam().dtype == DType::BF16 ? 6e-3 : 1e-3;  // storage rounding: 2^-9 and 2^-12 an entry, probabilities too
  EXPECT_LT(error_ratio(ours.o, expected.o), limit);
  EXPECT_LT(error_ratio(ours.log_sum_exp, expected.log_sum_exp), 1e-5);
  EXPECT_LT(error_ratio(ours.dv, gradients.dv), 2 * limit);
  EXPECT_LE(ours.asked, ours.bound) << "the plan counts less than cuDNN wants";
  std::printf("workspace of the backward: bound %lld asked %lld; error o %.2e lse %.2e dv %.2e dq %.2e dk %.2e\n",
              static_cast<long long>(ours.bound), static_cast<long long>(ours.asked), error_ratio(ours.o, expected.o),
              error_ratio(ours.log_sum_exp, expected.log_sum_exp), error_ratio(ours.dv, gradients.dv),
              error_ratio(ours.dq, gradients.dq), error_ratio(ours.dk, gradients.dk));
  if (problem.tokens == 1) return;  // a single key: dq and dk are zero, ratios mean nothing
  EXPECT_LT(error_ratio(ours.dq, gradients.dq), 2 * limit);
  EXPECT_LT(error_ratio(ours.dk, gradients.dk), 2 * limit);
}

TEST_P(CudnnAttention, gives_the_same_bits_again_and_asks_for_no_new_plan) {
  const Problem problem(GetParam());
  const Problem::Result one = problem.run(*library());
  const std::int64_t plans = library()->plans();
  expect_same_bits(one, problem.run(*library()));
  EXPECT_EQ(library()->plans(), plans);
  const std::shared_ptr<kernels::cuda::FusedAttention> other = kernels::cuda::make_fused_attention();
  expect_same_bits(one, problem.run(*other));
  EXPECT_GT(other->plans(), 0);
}

INSTANTIATE_TEST_SUITE_P(cases, CudnnAttention, ::testing::ValuesIn(cases()), [](const ::testing::TestParamInfo<Case>& chosen) {
  return std::string(dtype_name(chosen.param.dtype)) + "_" + std::to_string(chosen.index);
});

// Documents of every length from 1 to 70: borders of tiles, many short documents in one call.
TEST(CudnnAttentionDocuments, of_every_short_length_equal_the_reference) {
  NEEDS_CUDNN();
  Case c;
  c.lengths.clear();
  for (std::int64_t length = 1; length <= 70; ++length) c.lengths.push_back(length * 29 % 71);
  const Problem problem(c);
  const auto expected = problem.reference.forward(problem.q, problem.k, problem.v);
  const auto gradients = problem.reference.backward(problem.q, problem.k, problem.v, problem.d_o);
  const Problem::Result ours = problem.run(*library());
  EXPECT_LT(error_ratio(ours.o, expected.o), 6e-3);
  EXPECT_LT(error_ratio(ours.dq, gradients.dq), 12e-3);
  EXPECT_LT(error_ratio(ours.dk, gradients.dk), 12e-3);
  EXPECT_LT(error_ratio(ours.dv, gradients.dv), 12e-3);
}

TEST(CudnnAttentionDocuments, change_no_bit_of_each_other) {
  NEEDS_CUDNN();
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{100, 128, 40}, {128, 128, 128}}) {
    Case c;
    c.lengths = lengths;
    const Problem before(c);
    Problem after = before;
    const std::int64_t begin = lengths[0], end = begin + lengths[1], wide = c.query_heads * c.dim, narrow = c.kv_heads * c.dim;
    for (std::vector<double>* x : {&after.q, &after.d_o})
      std::fill(x->begin() + begin * wide, x->begin() + end * wide, std::nan(""));
    for (std::vector<double>* x : {&after.k, &after.v}) std::fill(x->begin() + begin * narrow, x->begin() + end * narrow, -2.0);
    const Problem::Result a = before.run(*library()), b = after.run(*library());
    const auto compare = [&](const std::vector<double>& x, const std::vector<double>& y, std::int64_t width) {
      std::int64_t changed = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::int64_t token = static_cast<std::int64_t>(i) / width;
        if (token >= begin && token < end) {
          changed += x[i] != y[i] ? 1 : 0;
        } else {
          ASSERT_EQ(x[i], y[i]) << "token " << token;
        }
      }
      EXPECT_GT(changed, 1000);
    };
    compare(a.o, b.o, wide);
    compare(a.dq, b.dq, wide);
    compare(a.dk, b.dk, narrow);
    compare(a.dv, b.dv, narrow);
  }
}

// A score matrix above its bound is cut over documents, then over key heads: the same result as the reference's sample rows.
TEST(CudnnAttentionCuts, over_documents_and_key_heads_change_no_bit) {
  NEEDS_CUDNN();
  Case whole;
  whole.lengths = {4096};  // 32 heads: 1 GiB, one call
  whole.query_heads = 32, whole.kv_heads = 8, whole.dim = 64;
  Case twice = whole;
  twice.lengths = {4096, 4096, 4096};  // three calls
  const Problem one(whole), three(twice);
  EXPECT_EQ(kernels::fused_attention_schedule({1, one.reference.cu_seqlens.data()}, 32, 8, true).calls.size(), 1u);
  EXPECT_EQ(kernels::fused_attention_schedule({3, three.reference.cu_seqlens.data()}, 32, 8, true).calls.size(), 3u);
  const Problem::Result a = one.run(*library()), b = three.run(*library());
  // Both draw the same numbers for the first document.
  EXPECT_TRUE(std::equal(a.o.begin(), a.o.end(), b.o.begin()));
  EXPECT_TRUE(std::equal(a.dq.begin(), a.dq.end(), b.dq.begin()));
  EXPECT_TRUE(std::equal(a.dk.begin(), a.dk.end(), b.dk.begin()));
  EXPECT_TRUE(std::equal(a.dv.begin(), a.dv.end(), b.dv.begin()));
}

TEST(CudnnAttentionCuts, over_key_heads_equal_those_heads_alone) {
  NEEDS_CUDNN();
  Case both;
  both.lengths = {8192};
  both.query_heads = 16, both.kv_heads = 2, both.dim = 64;  // 2 GiB of scores: a call a key head
  const Problem problem(both);
  EXPECT_EQ(kernels::fused_attention_schedule({1, problem.reference.cu_seqlens.data()}, 16, 2, true).calls.size(), 2u);
  const Problem::Result all = problem.run(*library());
  for (std::int64_t head = 0; head < 2; ++head) {
    Case alone = both;
    alone.query_heads = 8, alone.kv_heads = 1;
    Problem part(alone);
    const auto take = [&](const std::vector<double>& from, std::int64_t heads, std::int64_t of) {
      std::vector<double> to;
      for (std::int64_t t = 0; t < problem.tokens; ++t) {
        const auto begin = from.begin() + ((t * heads * 2 + head * heads) * of);
        to.insert(to.end(), begin, begin + heads * of);
      }
      return to;
    };
    part.q = take(problem.q, 8, 64), part.d_o = take(problem.d_o, 8, 64), part.k = take(problem.k, 1, 64),
    part.v = take(problem.v, 1, 64);
    const Problem::Result one = part.run(*library());
    EXPECT_LT(error_ratio(take(all.o, 8, 64), one.o), 1e-3);
    EXPECT_LT(error_ratio(take(all.dq, 8, 64), one.dq), 4e-3);
    EXPECT_LT(error_ratio(take(all.dk, 1, 64), one.dk), 4e-3);
    EXPECT_LT(error_ratio(take(all.dv, 1, 64), one.dv), 4e-3);
  }
}

}  // namespace
}  // namespace deltron
