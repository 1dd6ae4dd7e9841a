// The device side of the tensor layer: memory, uploads and downloads, conversion, streams and events, counted waits, out of memory.
#include "kernels/cross_entropy.h"
#include "src/base/check.h"
#include "src/tensor/cuda_device.h"
#include "src/tensor/ops.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::random_values;
using test::small_context;

TEST(Device, values_survive_the_way_there_and_back_in_every_type) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64}) {
    const std::vector<double> values = {1, -2, 0.5 * (is_floating(dtype) ? 1 : 2), 100, 0, 7};
    const Tensor tensor = make_tensor(ctx, {2, 3}, dtype, values, "there");
    EXPECT_EQ(to_doubles(ctx, tensor), values) << dtype_name(dtype);
    EXPECT_EQ(to_doubles(ctx, transposed(tensor)),
              (std::vector<double>{values[0], values[3], values[1], values[4], values[2], values[5]}));
  }
}

TEST(Device, large_uploads_go_through_the_pinned_slots_whole) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  constexpr std::int64_t count = (std::int64_t{70} << 20) / 4 + 3;  // more than all slots together
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i * 2654435761u);
  const Tensor tensor = Tensor::empty(ctx, {count}, DType::I32, "large");
  copy_from_host(ctx, tensor, values.data());
  std::vector<std::int32_t> back(values.size());
  copy_to_host(ctx, tensor, back.data());
  EXPECT_TRUE(back == values);
}

TEST(Device, an_upload_is_done_with_the_callers_memory_when_it_returns) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  std::vector<float> values(1000, 3.0f);
  const Tensor tensor = Tensor::zeros(ctx, {1000}, DType::F32, "upload");
  copy_from_host(ctx, tensor, values.data());
  std::fill(values.begin(), values.end(), -1.0f);
  for (double value : to_doubles(ctx, tensor)) ASSERT_EQ(value, 3.0);
}

TEST(Device, conversion_rounds_as_on_the_cpu) {
  const std::vector<double> values = random_values(10007, 3, 10.0);
  for (DType to : {DType::BF16, DType::F64}) {
    std::vector<std::uint64_t> bits[2];
    for (int side : {0, 1}) {
      Context ctx(small_context(1, side == 0 ? DeviceKind::Cpu : DeviceKind::Cuda));
      const Tensor from = make_tensor(ctx, {10007}, DType::F32, values, "from");
      const Tensor target = Tensor::zeros(ctx, {10007}, to, "to");
      convert(ctx, from, target);
      bits[side] = test::bits_of(ctx, target);
    }
    EXPECT_EQ(bits[0], bits[1]) << dtype_name(to);
  }
}

TEST(Device, waits_of_the_host_are_counted_and_launches_are_none) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  const Tensor a = Tensor::zeros(ctx, {256, 256}, DType::F32, "a"), b = Tensor::zeros(ctx, {256, 256}, DType::F32, "b");
  const std::int64_t before = ctx.host_synchronizations();
  for (int i = 0; i < 10; ++i) {
    fill(ctx, a, 1.5);
    accumulate(ctx, a, b);
    copy_from_host(ctx, a, std::vector<float>(256 * 256, 2.0f).data());
  }
  EXPECT_EQ(ctx.host_synchronizations(), before);
  EXPECT_EQ(to_doubles(ctx, b)[5], 15.0);
  EXPECT_EQ(ctx.host_synchronizations(), before + 1);
}

TEST(Device, copy_streams_follow_compute_and_compute_waits_for_them) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  constexpr std::int64_t count = 1 << 20;
  const Tensor x = Tensor::zeros(ctx, {count}, DType::F32, "x"), y = Tensor::zeros(ctx, {count}, DType::F32, "y");
  auto* host = static_cast<float*>(ctx.host_memory()->allocate(count * 4, MemoryTag::Activations, {}));
  fill(ctx, x, 4.0);
  Stream& out = ctx.copy_out_stream();
  out.wait(ctx.compute_point());
  out.delay(0.05);  // were the orders below not kept, the copy would see the later values
  out.copy(host, x.data(), count * 4);
  const Event copied = out.record();
  EXPECT_FALSE(copied.complete());
  ctx.compute_waits(copied);
  fill(ctx, x, -1.0);
  Stream& in = ctx.copy_in_stream();
  in.wait(copied);
  in.copy(y.data(), host, count * 4);
  ctx.compute_waits(in.record());
  accumulate(ctx, x, y);
  EXPECT_EQ(to_doubles(ctx, y)[count - 1], 3.0);
  EXPECT_TRUE(copied.complete());
  ctx.host_memory()->release(host, count * 4, MemoryTag::Activations, {});
}

TEST(Device, a_full_device_is_an_out_of_memory_error_with_the_table) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  const Tensor kept = Tensor::zeros(ctx, {1 << 20}, DType::F32, "kept", MemoryTag::Weights);
  try {
    Tensor::empty(ctx, {std::int64_t{1} << 42}, DType::F32, "too much");
    FAIL() << "4 TiB were found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
    EXPECT_NE(std::string(error.what()).find("weights 4.00 MiB"), std::string::npos) << error.what();
  }
  fill(ctx, kept, 2.0);  // the device is as usable as before
  EXPECT_EQ(to_doubles(ctx, kept.slice(0, 0, 1))[0], 2.0);
}

TEST(Device, a_refused_launch_is_an_error_that_names_the_kernel) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  const Tensor x = Tensor::zeros(ctx, {64, 8}, DType::F32, "x"), lse = Tensor::zeros(ctx, {64, 1}, DType::F32, "lse");
  kernels::CrossEntropyForwardArgs args;
  args.rows = std::int64_t{1} << 31;  // more blocks than a grid may have
  args.vocab = 8;
  args.logits = {x.data(), 0};
  try {
    kernels::cuda::cross_entropy_forward(args, ctx.stream());
    FAIL() << "the launch was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::DeviceFailed);
    EXPECT_NE(std::string(error.what()).find("cross_entropy_forward"), std::string::npos) << error.what();
  }
  fill(ctx, lse, 1.0);  // the context lives on
  EXPECT_EQ(to_doubles(ctx, lse)[63], 1.0);
}

TEST(Device, several_contexts_work_side_by_side) {
  Context one(small_context(1, DeviceKind::Cuda)), two(small_context(1, DeviceKind::Cuda));
  const Tensor a = make_tensor(one, {64, 64}, DType::F32, random_values(4096, 1), "a"),
               b = make_tensor(two, {64, 64}, DType::F32, random_values(4096, 1), "b");
  const Tensor c = Tensor::zeros(one, {64, 64}, DType::F32, "c"), d = Tensor::zeros(two, {64, 64}, DType::F32, "d");
  matmul(one, a, a, c);
  matmul(two, b, b, d);
  EXPECT_EQ(test::bits_of(one, c), test::bits_of(two, d));
}

}  // namespace
}  // namespace deltron
