// The optimizer's table of tensors: its chunks, tensors beyond 2^31 elements (on meta, where nothing is allocated), tensors that moved.
#include "src/optim/multi_tensor.h"

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/optim/optimizer.h"
#include "src/tensor/context.h"

namespace deltron {
namespace {

using kernels::kNormBlock;

TEST(MultiTensorTable, chunks_cover_every_tensor_once_in_order_even_beyond_2_to_the_31_elements) {
  const std::int64_t huge = (std::int64_t{1} << 31) + kNormBlock + 5;
  const std::vector<std::int64_t> counts = {1, 0, kNormBlock, huge, 7};
  std::vector<std::int64_t> covered(counts.size(), 0);
  std::int32_t last = 0;
  for (const kernels::MultiTensorChunk& chunk : multi_tensor_chunks(counts)) {
    const auto tensor = static_cast<std::size_t>(chunk.tensor);
    ASSERT_GE(chunk.tensor, last);
    last = chunk.tensor;
    ASSERT_EQ(chunk.begin, covered[tensor]);
    ASSERT_EQ(chunk.begin % kNormBlock, 0);
    ASSERT_GT(chunk.count, 0);
    ASSERT_LE(chunk.count, kNormBlock);
    covered[tensor] += chunk.count;
  }
  EXPECT_EQ(covered, counts);
}

TEST(MultiTensorTable, an_optimizer_of_huge_tensors_can_be_planned_without_their_memory) {
  Context ctx({.device = DeviceKind::Meta, .threads = 1});
  const std::int64_t huge = (std::int64_t{1} << 31) + kNormBlock + 5;
  std::vector<OptimizedParameter> parameters;
  for (const std::int64_t count : {std::int64_t{10}, huge}) {
    parameters.push_back({"w", Tensor::empty(ctx, {count}, DType::BF16, "w", MemoryTag::Weights),
                          Tensor::zeros(ctx, {count}, DType::F32, "g", MemoryTag::MainGradients)});
  }
  Optimizer optimizer(ctx, {}, parameters);
  optimizer.step(ctx, 0.1);
  EXPECT_EQ(optimizer.updates(), 1);
  EXPECT_EQ(optimizer.norm().partial_count(), 1 + (huge + kNormBlock - 1) / kNormBlock);
}

TEST(MultiTensorTable, knows_when_a_tensor_has_moved) {
  Context ctx({.threads = 1});
  const Tensor one = make_tensor(ctx, {3}, DType::F32, {1, 2, 3}, "one"), other = make_tensor(ctx, {3}, DType::F32, {1, 2, 3}, "other");
  const auto entry = [](const Tensor& tensor) {
    kernels::MultiTensorEntry e;
    e.count = tensor.count(), e.grad = tensor.data();
    return e;
  };
  const MultiTensor table(ctx, {entry(one)});
  EXPECT_TRUE(table.describes({entry(one)}));
  EXPECT_FALSE(table.describes({entry(other)}));
  EXPECT_FALSE(table.describes({entry(one), entry(other)}));
}

TEST(MultiTensorTable, refuses_types_that_no_kernel_takes) {
  Context ctx({.threads = 1});
  kernels::MultiTensorEntry half;
  half.dtype = DType::BF16;
  EXPECT_THROW(MultiTensor(ctx, {half}), Error);
  kernels::MultiTensorEntry mixed;
  mixed.dtype = DType::F64, mixed.weight = &mixed, mixed.weight_dtype = DType::BF16;
  EXPECT_THROW(MultiTensor(ctx, {mixed}), Error);
}

}  // namespace
}  // namespace deltron
