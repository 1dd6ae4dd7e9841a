// Views: what they point at, what they refuse, and that they share one storage. Conversion to and from host values.
#include "src/tensor/tensor.h"

#include "src/tensor/ops.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::contains;
using test::message_of;
using test::small_context;

std::vector<double> counting(std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(i));
  return values;
}

TEST(Tensor, fresh_tensors_are_contiguous_rows_and_zeros_are_zero) {
  Context ctx(small_context());
  const Tensor tensor = Tensor::zeros(ctx, {3, 4, 5}, DType::F32, "t");
  EXPECT_EQ(tensor.stride(0), 20);
  EXPECT_EQ(tensor.stride(1), 5);
  EXPECT_EQ(tensor.stride(-1), 1);
  EXPECT_EQ(tensor.size(-3), 3);
  EXPECT_EQ(tensor.count(), 60);
  EXPECT_EQ(tensor.bytes(), 240);
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_EQ(to_doubles(ctx, tensor), std::vector<double>(60, 0.0));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0u);
}

TEST(Tensor, slices_of_every_dimension_point_at_the_right_elements) {
  Context ctx(small_context());
  const Tensor whole = make_tensor(ctx, {2, 3, 4}, DType::F64, counting(24), "t");
  EXPECT_EQ(to_doubles(ctx, whole.slice(0, 1, 1)), (std::vector<double>{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(to_doubles(ctx, whole.slice(1, 1, 1)), (std::vector<double>{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(to_doubles(ctx, whole.slice(-1, 2, 2)), (std::vector<double>{2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23}));
  const Tensor nested = whole.slice(1, 1, 2).slice(2, 1, 2).slice(0, 1, 1);
  EXPECT_EQ(to_doubles(ctx, nested), (std::vector<double>{17, 18, 21, 22}));
  EXPECT_EQ(nested.offset(), 17);
  EXPECT_EQ(nested.data(), whole.data_as<double>() + 17);
  EXPECT_EQ(nested.storage(), whole.storage());
  EXPECT_EQ(whole.slice(0, 2, 0).count(), 0);
}

TEST(Tensor, a_slice_beyond_its_dimension_is_refused_with_name_and_range) {
  Context ctx(small_context());
  const Tensor t = Tensor::zeros(ctx, {2, 3}, DType::F32, "gates");
  EXPECT_TRUE(contains(message_of([&] { t.slice(1, 2, 2); }), {"gates", "[2,4)", "[2,3]"}));
  EXPECT_TRUE(contains(message_of([&] { t.slice(0, -1, 1); }), {"gates"}));
  EXPECT_TRUE(contains(message_of([&] { t.slice(2, 0, 1); }), {"dimension 2"}));
  EXPECT_TRUE(contains(message_of([&] { t.size(-3); }), {"[2,3]"}));
}

TEST(Tensor, split_last_makes_heads_of_a_strided_slice_without_copying) {
  Context ctx(small_context());
  const Tensor whole = make_tensor(ctx, {3, 10}, DType::F32, counting(30), "qkv");
  const Tensor heads = whole.slice(1, 2, 6).split_last(3);
  EXPECT_EQ(heads.shape(), (Shape{3, 3, 2}));
  EXPECT_EQ(heads.stride(0), 10);
  EXPECT_EQ(heads.stride(1), 2);
  EXPECT_FALSE(heads.is_contiguous());
  EXPECT_EQ(to_doubles(ctx, heads.slice(1, 1, 1)), (std::vector<double>{4, 5, 14, 15, 24, 25}));
  EXPECT_TRUE(contains(message_of([&] { whole.split_last(3); }), {"qkv", "3 heads"}));
  EXPECT_TRUE(contains(message_of([&] { transposed(whole).split_last(3); }), {"qkv"}));
}

TEST(Tensor, view_keeps_memory_and_refuses_strides_and_other_counts) {
  Context ctx(small_context());
  const Tensor whole = make_tensor(ctx, {4, 6}, DType::F64, counting(24), "t");
  const Tensor view = whole.slice(0, 1, 2).view({3, 4});
  EXPECT_EQ(view.data(), whole.data_as<double>() + 6);
  EXPECT_EQ(to_doubles(ctx, view), to_doubles(ctx, whole.slice(0, 1, 2)));
  EXPECT_TRUE(contains(message_of([&] { whole.slice(1, 0, 3).view({12}); }), {"contiguous"}));
  EXPECT_TRUE(contains(message_of([&] { whole.view({5, 5}); }), {"view of 't'"}));
}

TEST(Tensor, contiguity_ignores_the_strides_of_extents_of_one) {
  Context ctx(small_context());
  const Tensor whole = Tensor::zeros(ctx, {4, 6}, DType::F32, "t");
  EXPECT_TRUE(whole.slice(0, 2, 1).slice(1, 3, 2).is_contiguous());  // one row: the row stride does not matter
  EXPECT_FALSE(whole.slice(1, 3, 2).is_contiguous());
  EXPECT_FALSE(transposed(whole).is_contiguous());
  EXPECT_TRUE(transposed(whole.slice(1, 0, 1)).is_contiguous() == false);  // [1,4] with stride 6 inside
}

TEST(Tensor, copies_share_memory_and_detached_drops_only_the_extension) {
  Context ctx(small_context());
  Tensor tensor = make_tensor(ctx, {2, 2}, DType::F32, {1, 2, 3, 4}, "t");
  tensor.set_extension(std::make_shared<TensorExtension>());
  const Tensor copy = tensor;
  EXPECT_EQ(copy.extension(), tensor.extension());
  EXPECT_EQ(tensor.detached().extension(), nullptr);
  EXPECT_TRUE(tensor.detached().same_view(tensor));
  EXPECT_FALSE(tensor.slice(0, 0, 1).same_view(tensor));
  EXPECT_FALSE(transposed(tensor).same_view(tensor));
  EXPECT_EQ(tensor.slice(0, 0, 1).extension(), nullptr) << "a plain view must not pass for a recorded result";
  copy.data_as<float>()[3] = 9;
  EXPECT_EQ(to_doubles(ctx, tensor)[3], 9);
}

TEST(Tensor, an_undefined_tensor_has_no_data) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_TRUE(contains(message_of([&] { none.data(); }), {"undefined"}));
}

TEST(Tensor, host_values_survive_the_round_trip_in_every_dtype) {
  Context ctx(small_context());
  for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U16, DType::U8}) {
    const std::vector<double> values = {0, 1, 2, 200};
    EXPECT_EQ(to_doubles(ctx, make_tensor(ctx, {4}, dtype, values, "t")), values) << dtype_name(dtype);
  }
  // Rounding to bf16 goes to the nearest, ties to even.
  EXPECT_EQ(to_doubles(ctx, make_tensor(ctx, {3}, DType::BF16, {1.00390625, 1.01171875, -1.005}, "t")),
            (std::vector<double>{1.0, 1.015625, -1.0078125}));
  EXPECT_TRUE(contains(message_of([&] { make_tensor(ctx, {3}, DType::F32, {1, 2}, "short"); }), {"short"}));
}

TEST(Tensor, meta_tensors_have_shapes_and_bytes_but_no_values) {
  Context ctx(small_context(1, DeviceKind::Meta));
  const Tensor tensor = Tensor::zeros(ctx, {100, 100}, DType::F32, "t");
  EXPECT_EQ(tensor.data(), nullptr);
  EXPECT_EQ(tensor.slice(1, 3, 4).split_last(2).data(), nullptr);
  EXPECT_TRUE(contains(message_of([&] { to_doubles(ctx, tensor); }), {"meta"}));
  float value = 0;
  EXPECT_TRUE(contains(message_of([&] { copy_to_host(ctx, tensor.slice(0, 0, 1).slice(1, 0, 1), &value); }), {"meta"}));
}

}  // namespace
}  // namespace deltron
