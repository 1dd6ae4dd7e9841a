// Streaming kernels on tensors of more than 2^31 elements. Inputs repeat every 251 rows, so that each row of the result must have the
// bits that a run of 251 rows gives it; 251 divides no power of two, so an index that wraps meets another row. Every byte is compared.
#include "kernels/causal_conv1d.h"
#include "kernels/elementwise.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/gdn_pre_rule.h"
#include "kernels/l2_norm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "tests/kernels/gpu/device_array.h"

namespace deltron::test {
namespace {

using namespace kernels;

constexpr std::int64_t kPeriod = 251, kCols = 4096, kPeriods = 2090, kRows = kPeriod * kPeriods;
static_assert(kRows * kCols > kPast32Bits && (kRows - 1000) * kCols < kPast32Bits);
constexpr DType kBf16 = DType::BF16;

class LargeStreaming : public LargeGpu {
 protected:
  // Row `r` of `cols` elements, the same in every period.
  static DeviceArray input(std::int64_t rows, std::int64_t cols, std::uint64_t seed, DType dtype = kBf16) {
    DeviceArray array(dtype, rows * cols);
    array.repeat(TestRandom(seed).values(kPeriod * cols));
    return array;
  }
  static MatrixView view(const DeviceArray& a, std::int64_t cols = kCols) { return {a.data(), cols}; }
  static MutableMatrixView out(const DeviceArray& a, std::int64_t cols = kCols) { return {a.data(), cols}; }
  static HeadView heads(const DeviceArray& a, std::int64_t dim, std::int64_t cols = kCols) { return {a.data(), 0, cols, dim}; }
  static MutableHeadView heads_out(const DeviceArray& a, std::int64_t dim, std::int64_t cols = kCols) { return {a.data(), 0, cols, dim}; }

  // run(rows) returns the outputs; those of all rows must repeat those of one period.
  template <class Run>
  void compare(const Run& run) {
    std::vector<DeviceArray> small = run(kPeriod);
    finish("small run");
    std::vector<DeviceArray> large = run(kRows);
    finish("large run");
    for (std::size_t i = 0; i < large.size(); ++i) EXPECT_TRUE(repeats(large[i], small[i])) << "output " << i;
  }
  static std::vector<DeviceArray> list(DeviceArray a) {
    std::vector<DeviceArray> all;
    all.push_back(std::move(a));
    return all;
  }
  static std::vector<DeviceArray> list(DeviceArray a, DeviceArray b) {
    std::vector<DeviceArray> all = list(std::move(a));
    all.push_back(std::move(b));
    return all;
  }
  StreamHandle stream_ = device_stream();
};

TEST_F(LargeStreaming, fill_writes_the_last_element) {
  DELTRON_NEED_GIB(10);
  compare([&](std::int64_t rows) {
    DeviceArray y(kBf16, rows * kCols);
    cuda::fill({y.count(), y.data(), kBf16, 1.5}, stream_);
    return list(std::move(y));
  });
}

TEST_F(LargeStreaming, conversion_to_fp32_and_back) {
  DELTRON_NEED_GIB(24);
  compare([&](std::int64_t rows) {
    const DeviceArray x = input(rows, kCols, 1);
    DeviceArray y(DType::F32, rows * kCols), z(kBf16, rows * kCols);
    cuda::convert({rows, kCols, view(x), kBf16, out(y), DType::F32}, stream_);
    cuda::convert({rows, kCols, view(y), DType::F32, out(z), kBf16}, stream_);
    finish("convert");
    return list(std::move(y), std::move(z));
  });
}

TEST_F(LargeStreaming, sums_and_scaling) {
  DELTRON_NEED_GIB(32);
  compare([&](std::int64_t rows) {
    const DeviceArray a = input(rows, kCols, 2), b = input(rows, kCols, 3);
    DeviceArray y(kBf16, rows * kCols), total = input(rows, kCols, 4, DType::F32);
    cuda::add({y.count(), a.data(), b.data(), y.data(), kBf16}, stream_);
    cuda::scale({y.count(), y.data(), kBf16, 0.75}, stream_);
    cuda::accumulate({rows, kCols, view(a), kBf16, out(total), DType::F32, -0.5}, stream_);
    finish("sums");
    return list(std::move(y), std::move(total));
  });
}

TEST_F(LargeStreaming, dropout_follows_the_token) {
  DELTRON_NEED_GIB(24);
  compare([&](std::int64_t rows) {
    const DeviceArray x = input(rows, kCols, 5), residual = input(rows, kCols, 6);
    DeviceArray sample(DType::I64, rows), offset(DType::I32, rows), y(kBf16, rows * kCols);
    std::vector<std::int64_t> samples(kPeriod);
    std::vector<std::int32_t> offsets(kPeriod);
    for (std::size_t r = 0; r < kPeriod; ++r) samples[r] = static_cast<std::int64_t>(r / 7), offsets[r] = static_cast<std::int32_t>(r % 7);
    const auto raw = [](const auto& v) {
      std::vector<char> bytes(v.size() * sizeof(v[0]));
      std::memcpy(bytes.data(), v.data(), bytes.size());
      return bytes;
    };
    sample.repeat(raw(samples)), offset.repeat(raw(offsets));
    DropoutAddArgs args;
    args.rows = rows, args.cols = kCols, args.x = x.data(), args.residual = residual.data(), args.y = y.data(), args.dtype = kBf16;
    args.rng = {77, reinterpret_cast<const std::int64_t*>(sample.data()), reinterpret_cast<const std::int32_t*>(offset.data()), 0.25};
    cuda::dropout_add(args, stream_);
    finish("dropout");
    return list(std::move(y));
  });
}

TEST_F(LargeStreaming, sigmoid_gate_both_ways) {
  DELTRON_NEED_GIB(36);
  compare([&](std::int64_t rows) {
    const DeviceArray x = input(rows, kCols, 7), gate = input(rows, kCols, 8), dy = input(rows, kCols, 9);
    DeviceArray y(kBf16, rows * kCols), dx(kBf16, rows * kCols), dgate(kBf16, rows * kCols);
    cuda::sigmoid_gate_forward({rows, kCols, kBf16, view(x), view(gate), out(y)}, stream_);
    cuda::sigmoid_gate_backward({rows, kCols, kBf16, view(x), view(gate), view(dy), out(dx), out(dgate)}, stream_);
    finish("gate");
    std::vector<DeviceArray> all = list(std::move(y), std::move(dx));
    all.push_back(std::move(dgate));
    return all;
  });
}

TEST_F(LargeStreaming, swiglu_both_ways) {
  DELTRON_NEED_GIB(48);
  compare([&](std::int64_t rows) {
    const DeviceArray h = input(rows, 2 * kCols, 10), dy = input(rows, kCols, 11);
    DeviceArray y(kBf16, rows * kCols), dh(kBf16, rows * 2 * kCols), again(kBf16, rows * kCols);
    cuda::swiglu_forward({rows, kCols, kBf16, view(h, 2 * kCols), out(y)}, stream_);
    cuda::swiglu_backward({rows, kCols, kBf16, view(h, 2 * kCols), view(dy), out(dh, 2 * kCols), out(again)}, stream_);
    finish("swiglu");
    std::vector<DeviceArray> all = list(std::move(y), std::move(dh));
    all.push_back(std::move(again));
    return all;
  });
}

template <class Args, class Bytes, class Run>
void with_workspace(Args& args, const Bytes& bytes, const Run& run, const StreamHandle& stream) {
  const std::int64_t needed = bytes(args, stream);
  const DeviceArray workspace(DType::U8, needed);
  args.workspace = {workspace.data(), needed};
  run(args, stream);
  finish("kernel with workspace");
  EXPECT_TRUE(workspace.untouched());
}

TEST_F(LargeStreaming, rms_norm_both_ways) {
  DELTRON_NEED_GIB(36);
  DeviceArray small_weight, large_weight;
  compare([&](std::int64_t rows) {
    const DeviceArray x = input(rows, kCols, 12), dy = input(rows, kCols, 13), weight = input(1, kCols, 14);
    DeviceArray y(kBf16, rows * kCols), dx(kBf16, rows * kCols), rstd(DType::F32, rows), dweight(DType::F32, kCols);
    dweight.zero();
    RmsNormForwardArgs f;
    f.rows = rows, f.cols = kCols, f.dtype = kBf16, f.x = heads(x, kCols), f.weight = weight.data(), f.weight_dtype = kBf16;
    f.rstd = rstd.data(), f.y = heads_out(y, kCols);
    cuda::rms_norm_forward(f, stream_);
    RmsNormBackwardArgs b;
    b.rows = rows, b.cols = kCols, b.dtype = kBf16, b.x = f.x, b.dy = heads(dy, kCols), b.weight = f.weight, b.weight_dtype = kBf16;
    b.rstd = rstd.data(), b.dx = heads_out(dx, kCols), b.dweight = dweight.data();
    with_workspace(b, cuda::rms_norm_backward_workspace_bytes, cuda::rms_norm_backward, stream_);
    (rows == kRows ? large_weight : small_weight) = std::move(dweight);
    std::vector<DeviceArray> all = list(std::move(y), std::move(dx));
    all.push_back(std::move(rstd));
    return all;
  });
  expect_multiple(large_weight, small_weight, kPeriods, 1e-4, "dweight");
}

TEST_F(LargeStreaming, gated_rms_norm_both_ways) {
  DELTRON_NEED_GIB(44);
  constexpr std::int64_t kDim = 128, kHeads = kCols / kDim;
  DeviceArray small_weight, large_weight;
  compare([&](std::int64_t rows) {
    const DeviceArray x = input(rows, kCols, 15), z = input(rows, kCols, 16), dy = input(rows, kCols, 17);
    DeviceArray weight(DType::F32, kDim), rstd(DType::F32, rows * kHeads), dweight(DType::F32, kDim);
    weight.repeat(TestRandom(18).values(kDim));
    dweight.zero();
    DeviceArray y(kBf16, rows * kCols), dx(kBf16, rows * kCols), dz(kBf16, rows * kCols);
    GatedRmsNormForwardArgs f;
    f.rows = rows, f.heads = kHeads, f.dim = kDim, f.dtype = kBf16, f.x = heads(x, kDim), f.z = heads(z, kDim);
    f.weight = weight.data(), f.rstd = rstd.data(), f.y = heads_out(y, kDim);
    cuda::gated_rms_norm_forward(f, stream_);
    GatedRmsNormBackwardArgs b;
    b.rows = rows, b.heads = kHeads, b.dim = kDim, b.dtype = kBf16, b.x = f.x, b.z = f.z, b.dy = heads(dy, kDim), b.weight = f.weight;
    b.rstd = rstd.data(), b.dx = heads_out(dx, kDim), b.dz = heads_out(dz, kDim), b.dweight = dweight.data();
    with_workspace(b, cuda::gated_rms_norm_backward_workspace_bytes, cuda::gated_rms_norm_backward, stream_);
    (rows == kRows ? large_weight : small_weight) = std::move(dweight);
    std::vector<DeviceArray> all = list(std::move(y), std::move(dx));
    all.push_back(std::move(dz)), all.push_back(std::move(rstd));
    return all;
  });
  expect_multiple(large_weight, small_weight, kPeriods, 1e-4, "dweight");
}

TEST_F(LargeStreaming, l2_norm_and_rope_both_ways) {
  DELTRON_NEED_GIB(40);
  constexpr std::int64_t kDim = 128, kHeads = kCols / kDim;
  compare([&](std::int64_t rows) {
    const DeviceArray x = input(rows, kCols, 19), dy = input(rows, kCols, 20);
    DeviceArray y(kBf16, rows * kCols), dx(kBf16, rows * kCols), turned(kBf16, rows * kCols), back(kBf16, rows * kCols), rstd(DType::F32, rows * kHeads);
    L2NormForwardArgs f;
    f.rows = rows, f.heads = kHeads, f.dim = kDim, f.dtype = kBf16, f.x = heads(x, kDim), f.y = heads_out(y, kDim), f.rstd = rstd.data();
    cuda::l2_norm_forward(f, stream_);
    L2NormBackwardArgs b;
    b.rows = rows, b.heads = kHeads, b.dim = kDim, b.dtype = kBf16, b.y = heads(y, kDim), b.dy = heads(dy, kDim), b.rstd = rstd.data();
    b.dx = heads_out(dx, kDim);
    cuda::l2_norm_backward(b, stream_);
    std::vector<char> positions(kPeriod * 4);
    for (std::int32_t i = 0; i < kPeriod; ++i) std::memcpy(&positions[static_cast<std::size_t>(i) * 4], &i, 4);
    DeviceArray position(DType::I32, rows);
    position.repeat(positions);
    RopeArgs r;
    r.tokens = rows, r.heads = kHeads, r.dim = kDim, r.rotary_dim = 64, r.dtype = kBf16;
    r.positions = reinterpret_cast<const std::int32_t*>(position.data()), r.x = heads(x, kDim), r.y = heads_out(turned, kDim);
    cuda::rope(r, stream_);
    r.x = heads(turned, kDim), r.y = heads_out(back, kDim), r.inverse = true;
    cuda::rope(r, stream_);
    finish("norm and rope");
    std::vector<DeviceArray> all = list(std::move(y), std::move(dx));
    all.push_back(std::move(turned)), all.push_back(std::move(back)), all.push_back(std::move(rstd));
    return all;
  });
}

// Documents of one period each.
std::vector<std::int64_t> period_offsets(std::int64_t rows) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t t = 0; t <= rows; t += kPeriod) offsets.push_back(t);
  return offsets;
}
struct DeviceDocuments {
  std::vector<std::int64_t> host;
  DeviceArray device;
  explicit DeviceDocuments(std::vector<std::int64_t> offsets) : host(std::move(offsets)), device(DType::I64, static_cast<std::int64_t>(host.size())) {
    std::vector<char> bytes(host.size() * 8);
    std::memcpy(bytes.data(), host.data(), bytes.size());
    device.repeat(bytes);
  }
  Documents get() const {
    return {static_cast<std::int64_t>(host.size()) - 1, reinterpret_cast<const std::int64_t*>(device.data()), host.data()};
  }
};

TEST_F(LargeStreaming, convolution_both_ways) {
  DELTRON_NEED_GIB(36);
  DeviceArray small_weight, large_weight;
  compare([&](std::int64_t rows) {
    const DeviceArray x = input(rows, kCols, 21), dy = input(rows, kCols, 22), weight = input(1, kCols * 4, 23);
    const DeviceDocuments documents(period_offsets(rows));
    DeviceArray y(kBf16, rows * kCols), dx(kBf16, rows * kCols), dweight(DType::F32, kCols * 4);
    dweight.zero();
    CausalConv1dForwardArgs f;
    f.tokens = rows, f.channels = kCols, f.documents = documents.get(), f.dtype = kBf16, f.x = view(x), f.weight = weight.data();
    f.weight_dtype = kBf16, f.y = out(y);
    cuda::causal_conv1d_forward(f, stream_);
    CausalConv1dBackwardArgs b;
    b.tokens = rows, b.channels = kCols, b.documents = f.documents, b.dtype = kBf16, b.x = f.x, b.dy = view(dy), b.weight = f.weight;
    b.weight_dtype = kBf16, b.dx = out(dx), b.dweight = dweight.data();
    with_workspace(b, cuda::causal_conv1d_backward_workspace_bytes, cuda::causal_conv1d_backward, stream_);
    (rows == kRows ? large_weight : small_weight) = std::move(dweight);
    return list(std::move(y), std::move(dx));
  });
  expect_multiple(large_weight, small_weight, kPeriods, 1e-4, "dweight");
}

TEST_F(LargeStreaming, the_fused_preparation_both_ways) {
  DELTRON_NEED_GIB(48);
  constexpr std::int64_t kHk = 8, kHv = 16, kDim = 128, kRaw = 2 * kHv;
  static_assert((2 * kHk + kHv) * kDim == kCols);
  DeviceArray small_sums, large_sums;
  compare([&](std::int64_t rows) {
    const DeviceArray qkv = input(rows, kCols, 24), raw = input(rows, kRaw, 25), weight = input(1, kCols * 4, 26), d_prepared = input(rows, kCols, 27),
                      d_decay = input(rows, kHv, 28, DType::F32), d_strength = input(rows, kHv, 29);
    DeviceArray A_log(DType::F32, kHv), dt_bias(DType::F32, kHv);
    A_log.repeat(TestRandom(30).values(kHv)), dt_bias.repeat(TestRandom(31).values(kHv));
    const DeviceDocuments documents(period_offsets(rows));
    DeviceArray prepared(kBf16, rows * kCols), decay(DType::F32, rows * kHv), strength(kBf16, rows * kHv), d_qkv(kBf16, rows * kCols), d_raw(kBf16, rows * kRaw),
        d_weight(DType::F32, kCols * 4), d_A_log(DType::F32, kHv), d_dt_bias(DType::F32, kHv);
    d_weight.zero(), d_A_log.zero(), d_dt_bias.zero();
    GdnPreRuleForwardArgs f;
    f.tokens = rows, f.key_heads = kHk, f.value_heads = kHv, f.key_dim = f.value_dim = kDim, f.documents = documents.get(), f.dtype = kBf16;
    f.qkv = view(qkv), f.raw = view(raw, kRaw), f.conv_weight = weight.data(), f.conv_weight_dtype = kBf16;
    f.A_log = A_log.data(), f.dt_bias = dt_bias.data(), f.prepared = out(prepared), f.decay = decay.data(), f.strength = strength.data();
    with_workspace(f, cuda::gdn_pre_rule_forward_workspace_bytes, cuda::gdn_pre_rule_forward, stream_);
    GdnPreRuleBackwardArgs b;
    b.tokens = rows, b.key_heads = kHk, b.value_heads = kHv, b.key_dim = b.value_dim = kDim, b.documents = f.documents, b.dtype = kBf16;
    b.qkv = f.qkv, b.raw = f.raw, b.conv_weight = f.conv_weight, b.conv_weight_dtype = kBf16, b.A_log = f.A_log, b.dt_bias = f.dt_bias;
    b.d_prepared = view(d_prepared), b.d_decay = d_decay.data(), b.d_strength = d_strength.data(), b.d_qkv = out(d_qkv), b.d_raw = out(d_raw, kRaw);
    b.d_conv_weight = d_weight.data(), b.d_A_log = d_A_log.data(), b.d_dt_bias = d_dt_bias.data();
    with_workspace(b, cuda::gdn_pre_rule_backward_workspace_bytes, cuda::gdn_pre_rule_backward, stream_);
    (rows == kRows ? large_sums : small_sums) = std::move(d_weight);
    std::vector<DeviceArray> all = list(std::move(prepared), std::move(decay));
    all.push_back(std::move(strength)), all.push_back(std::move(d_qkv)), all.push_back(std::move(d_raw));
    return all;
  });
  expect_multiple(large_sums, small_sums, kPeriods, 1e-4, "d_conv_weight");
}

}  // namespace
}  // namespace deltron::test
