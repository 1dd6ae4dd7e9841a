// Saved tensors: version checks, accounting, grad mode, and the stack of pack and unpack hooks.
#include "tests/autograd/test_nodes.h"

namespace deltron {
namespace {

using test::backward_of;
using test::contains;
using test::gradient_of;
using test::message_of;
using test::random_tensor;
using test::scaled;
using test::small_context;

TEST(SavedTensors, writing_in_place_after_saving_is_an_error_that_names_the_tensor) {
  Context ctx(small_context());
  const std::vector<std::function<void(const Tensor&)>> writes = {
      [&](const Tensor& x) { fill(ctx, x, 3); },
      [&](const Tensor& x) { accumulate(ctx, x, x, 1.0); },
      [&](const Tensor& x) { fill(ctx, x.slice(0, 0, 1), 3); },  // through another view of the storage
      [&](const Tensor& x) { from_doubles(ctx, x, std::vector<double>(6, 0)); },
  };
  for (const auto& write : writes) {
    const Tensor x = random_tensor(ctx, {2, 3}, DType::F32, 1), w = make_leaf(random_tensor(ctx, {4, 3}, DType::F32, 2), "w");
    const Tensor y = linear(ctx, x, w, "proj");
    write(x);
    EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, y); }), {"proj.x", "in place"}));
  }
}

TEST(SavedTensors, writing_before_saving_or_into_another_storage_is_fine) {
  Context ctx(small_context());
  const Tensor x = random_tensor(ctx, {2, 3}, DType::F32, 1), w = make_leaf(random_tensor(ctx, {4, 3}, DType::F32, 2), "w");
  fill(ctx, x, 2);
  const Tensor y = linear(ctx, x, w, "proj");
  fill(ctx, y, 0);  // the result of a linear is not what it saved
  backward_of(ctx, y);
  EXPECT_EQ(to_doubles(ctx, gradient_of(w)), std::vector<double>(12, 4));
}

TEST(SavedTensors, the_loss_overwrites_its_logits_and_says_so) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {3, 5}, DType::F32, 1), "x"), w = make_leaf(random_tensor(ctx, {5, 5}, DType::F32, 2), "w");
  const Tensor logits = linear(ctx, x, w, "logits");
  const Tensor other = scaled(ctx, logits, 2, "keeps logits");
  const Tensor loss = cross_entropy(ctx, logits, test::int_tensor(ctx, {1, 2, 3}), 1);
  // The loss was created last, so it runs first; what kept the logits then meets changed memory.
  EXPECT_TRUE(contains(message_of([&] { backward(ctx, {loss, other}, {test::ones_like(ctx, loss), test::ones_like(ctx, other)}); }),
                       {"keeps logits.x", "in place"}));
}

TEST(SavedTensors, memory_put_back_by_adopt_passes_for_the_saved_values) {
  Context ctx(small_context());
  const Tensor x = random_tensor(ctx, {2, 3}, DType::F32, 1), w = make_leaf(random_tensor(ctx, {4, 3}, DType::F32, 2), "w");
  const Tensor y = linear(ctx, x, w, "proj");
  const Tensor again = random_tensor(ctx, {2, 3}, DType::F32, 1);
  const std::vector<double> values = to_doubles(ctx, x);
  x.storage()->discard();
  EXPECT_TRUE(contains(message_of([&] {
                         const Tensor z = linear(ctx, x, w, "too early");
                       }),
                       {"random", "Discarded"}));
  x.storage()->adopt(*again.storage());
  backward_of(ctx, y);
  std::vector<double> column_sums(12);
  for (std::size_t i = 0; i < 12; ++i) column_sums[i] = values[i % 3] + values[3 + i % 3];
  EXPECT_LE(test::relative_difference(to_doubles(ctx, gradient_of(w)), column_sums), 1e-6);
}

TEST(SavedTensors, a_backward_that_meets_discarded_memory_fails_at_once) {
  Context ctx(small_context());
  ScopeGuard scope(ctx, 2, "gdn_qkv");
  const Tensor x = random_tensor(ctx, {2, 3}, DType::F32, 1, 1.0, "gdn.qkv"), w = make_leaf(random_tensor(ctx, {4, 3}, DType::F32, 2), "w");
  const Tensor y = linear(ctx, x, w, "proj");
  x.storage()->discard();
  EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, y); }), {"gdn.qkv", "Discarded", "layer 2", "gdn_qkv"}));
}

TEST(SavedTensors, storages_count_once_however_many_nodes_save_them) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {100, 8}, DType::F32, 1), "x"), w = make_leaf(random_tensor(ctx, {8, 8}, DType::F32, 2), "w");
  const std::int64_t before = ctx.memory()->stats().saved;
  const Tensor a = linear(ctx, x, w, "a");
  EXPECT_EQ(ctx.memory()->stats().saved - before, 3200 + 256) << "x and, as it is tagged an activation here, w";
  const Tensor b = linear(ctx, x, w, "b");
  EXPECT_EQ(ctx.memory()->stats().saved - before, 3200 + 256);
  backward_of(ctx, a);
  EXPECT_EQ(ctx.memory()->stats().saved - before, 3200 + 256) << "b still holds them";
  backward_of(ctx, b);
  EXPECT_EQ(ctx.memory()->stats().saved, before);
}

TEST(SavedTensors, slices_of_one_storage_count_as_that_storage) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {100, 8}, DType::F32, 1), "x");
  const std::vector<Tensor> parts = split(ctx, x, {{3, 0}, {5, 0}}, "split");
  const std::int64_t before = ctx.memory()->stats().saved;
  const Tensor a = scaled(ctx, parts[0], 2, "a"), b = scaled(ctx, parts[1], 2, "b");
  EXPECT_EQ(ctx.memory()->stats().saved - before, 3200);
}

TEST(GradMode, off_saves_nothing_and_records_nothing) {
  Context ctx(small_context());
  const test::Program program(ctx, DType::F32);
  const std::vector<Tensor> w = program.leaves();
  Tensor with;
  {
    GradModeGuard off(ctx, false);
    const Tensor loss = program.loss(ctx, w);
    EXPECT_FALSE(requires_grad(loss));
    EXPECT_EQ(loss.extension(), nullptr);
    EXPECT_EQ(ctx.memory()->stats().saved, 0);
    EXPECT_EQ(ctx.memory()->stats().peak_saved, 0);
    EXPECT_TRUE(ctx.memory()->saved_storages().empty());
    for (const Tensor& part : split(ctx, w[2], {{3, 0}, {5, 0}}, "split")) EXPECT_EQ(part.extension(), nullptr);
    with = loss;
  }
  EXPECT_TRUE(ctx.slot<AutogradState>().grad_enabled);
  EXPECT_EQ(test::bits_of(ctx, program.loss(ctx, w)), test::bits_of(ctx, with)) << "recording changes no bit of the result";
}

TEST(GradMode, without_leaves_nothing_is_recorded_either) {
  Context ctx(small_context());
  const test::Program program(ctx, DType::F32);
  EXPECT_FALSE(requires_grad(program.loss(ctx, program.values)));
  EXPECT_EQ(ctx.memory()->stats().peak_saved, 0);
}

TEST(SavedTensorHooks, the_innermost_applies_and_unpack_needs_no_guard) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {2}, DType::F32, 1), "x");
  std::vector<std::string> calls;
  const auto hooks = [&](const std::string& label) {
    SavedTensorHooks pair;
    pair.pack = [&calls, label](const Tensor& tensor, const std::string& name) {
      EXPECT_EQ(tensor.extension(), nullptr);
      calls.push_back(label + " packs " + name);
      return std::any(tensor);
    };
    pair.unpack = [&calls, label](const std::any& packed) {
      calls.push_back(label + " unpacks");
      return std::any_cast<Tensor>(packed);
    };
    return pair;
  };
  Tensor y = scaled(ctx, x, 2, "before");
  {
    SavedTensorHooksGuard outer(ctx, hooks("outer"));
    y = scaled(ctx, y, 2, "a");
    {
      SavedTensorHooksGuard inner(ctx, hooks("inner"));
      y = scaled(ctx, y, 2, "b");
    }
    y = scaled(ctx, y, 2, "c");
  }
  y = scaled(ctx, y, 2, "after");
  EXPECT_EQ(calls, (std::vector<std::string>{"outer packs a.x", "inner packs b.x", "outer packs c.x"}));
  calls.clear();
  backward_of(ctx, y);
  EXPECT_EQ(calls, (std::vector<std::string>{"outer unpacks", "inner unpacks", "outer unpacks"}));
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), std::vector<double>(2, 32));
}

// Keeps activations as host vectors and gives back fresh, contiguous tensors.
SavedTensorHooks vector_hooks(Context& ctx, int& packed) {
  struct Kept {
    std::vector<double> values;
    Shape shape;
    DType dtype;
    Tensor weight;
  };
  SavedTensorHooks pair;
  pair.pack = [&ctx, &packed](const Tensor& tensor, const std::string&) {
    if (tensor.storage()->tag() != MemoryTag::Activations) return std::any(Kept{{}, {}, DType::F32, tensor});
    ++packed;
    return std::any(Kept{to_doubles(ctx, tensor), tensor.shape(), tensor.dtype(), {}});
  };
  pair.unpack = [&ctx](const std::any& any) {
    const Kept& kept = std::any_cast<const Kept&>(any);
    return kept.weight.defined() ? kept.weight : make_tensor(ctx, kept.shape, kept.dtype, kept.values, "unpacked");
  };
  return pair;
}

TEST(SavedTensorHooks, a_copy_in_a_host_vector_gives_the_same_bits) {
  for (DType dtype : {DType::F32, DType::F64, DType::BF16}) {
    Context ctx(small_context());
    const test::Program program(ctx, dtype);
    const auto expected = program.bits(ctx);
    int packed = 0;
    SavedTensorHooksGuard guard(ctx, vector_hooks(ctx, packed));
    ctx.memory()->reset_peak();
    EXPECT_EQ(program.bits(ctx), expected) << dtype_name(dtype);
    EXPECT_GT(packed, 20);
    EXPECT_EQ(ctx.memory()->stats().peak_saved, 0) << "what is packed away is not held on the device";
  }
}

}  // namespace
}  // namespace deltron
