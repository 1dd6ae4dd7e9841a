// The parameter store: logical sections, the one gradient buffer, and initial values.
#include "src/nn/parameter.h"

#include "src/base/hash.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::contains;
using test::message_of;
using test::small_context;

ParameterSpec spec(const std::string& name, const Shape& shape, InitKind init = InitKind::Normal, double scale = 0.02, DType dtype = DType::F32) {
  ParameterSpec result;
  result.name = name;
  result.shape = shape;
  result.dtype = dtype;
  result.init = init;
  result.init_scale = scale;
  return result;
}

TEST(ParameterStore, sections_are_row_ranges_with_names_of_their_own) {
  Context ctx(small_context());
  ParameterStore store;
  ParameterSpec fused = spec("l.in_proj.weight#gates", {7, 3});
  fused.sections = {{"z", 4}, {"beta", 2}, {"alpha", 1}};
  const ParameterPtr parameter = store.declare(fused);
  store.declare(spec("l.A_log", {5}));
  store.materialise(ctx, true);
  const std::vector<LogicalTensor> logical = store.logical();
  ASSERT_EQ(logical.size(), 4u);
  EXPECT_EQ(logical[0].name, "l.in_proj.weight.z");
  EXPECT_EQ(logical[1].name, "l.in_proj.weight.beta");
  EXPECT_EQ(logical[2].name, "l.in_proj.weight.alpha");
  EXPECT_EQ(logical[3].name, "l.A_log");
  EXPECT_EQ(logical[1].shape, (Shape{2, 3}));
  EXPECT_EQ(logical[1].value().storage(), parameter->value.storage());
  EXPECT_EQ(logical[1].value().offset(), 12);
  EXPECT_EQ(logical[2].slice(parameter->main_gradient).offset() - parameter->main_gradient.offset(), 18);
  EXPECT_FALSE(requires_grad(logical[1].value()));
  EXPECT_EQ(store.count(), 26);
}

TEST(ParameterStore, two_of_one_name_and_sections_that_do_not_cover_are_refused) {
  ParameterStore store;
  store.declare(spec("w", {2, 2}));
  EXPECT_TRUE(contains(message_of([&] { store.declare(spec("w", {2, 2})); }), {"'w'", "twice"}));
  ParameterSpec fused = spec("v", {7, 3});
  fused.sections = {{"a", 4}, {"b", 2}};
  EXPECT_TRUE(contains(message_of([&] { store.declare(fused); }), {"'v'", "6 of 7"}));
}

TEST(ParameterStore, main_gradients_lie_in_one_zeroed_buffer_of_the_compute_type_without_overlap) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F64}) {
    Context ctx(small_context());
    ParameterStore store;
    for (int i = 0; i < 5; ++i) store.declare(spec("w" + std::to_string(i), {i + 1, 100}, InitKind::Normal, 0.02, dtype));
    store.materialise(ctx, true);
    const Tensor& buffer = store.gradient_buffer();
    EXPECT_EQ(buffer.dtype(), compute_dtype(dtype));
    EXPECT_EQ(test::largest(to_doubles(ctx, buffer)), 0);
    std::int64_t end = 0;
    for (const ParameterPtr& parameter : store.all()) {
      EXPECT_EQ(parameter->main_gradient.storage(), buffer.storage());
      EXPECT_EQ(parameter->main_gradient.shape(), parameter->value.shape());
      EXPECT_GE(parameter->main_gradient.offset(), end);
      EXPECT_EQ(parameter->main_gradient.offset() % 128, 0);
      end = parameter->main_gradient.offset() + parameter->main_gradient.count();
      EXPECT_TRUE(leaf_of(parameter->value)->main_gradient.same_view(parameter->main_gradient));
    }
    EXPECT_LE(end, buffer.count());
    from_doubles(ctx, buffer, std::vector<double>(static_cast<std::size_t>(buffer.count()), 1.0));
    store.zero_main_gradients(ctx);
    EXPECT_EQ(test::largest(to_doubles(ctx, buffer)), 0);
  }
}

TEST(ParameterStore, a_step_zeroes_what_no_product_writes_over_and_what_backward_did_not_reach) {
  Context ctx(small_context());
  ParameterStore store;
  for (int i = 0; i < 5; ++i) store.declare(spec("w" + std::to_string(i), {i + 1, 100}));
  store.materialise(ctx, true);
  const auto value_of = [&](std::size_t i) { return to_doubles(ctx, store.all()[i]->main_gradient)[7]; };
  for (std::size_t i = 0; i < 5; ++i) {
    Leaf& leaf = *leaf_of(store.all()[i]->value);
    leaf.accumulations = 1;
    leaf.replaced = i == 1 || i == 3;
  }
  from_doubles(ctx, store.gradient_buffer(), std::vector<double>(static_cast<std::size_t>(store.gradient_buffer().count()), 1.0));
  store.start_main_gradients(ctx);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(leaf_of(store.all()[i]->value)->stale, i == 1 || i == 3) << i;
    EXPECT_EQ(value_of(i), i == 1 || i == 3 ? 1.0 : 0.0) << i;
  }
  leaf_of(store.all()[1]->value)->stale = false;  // as if backward had written over it
  store.finish_main_gradients(ctx);
  EXPECT_EQ(value_of(1), 1.0);
  EXPECT_EQ(value_of(3), 0.0) << "backward did not reach it";
  store.start_main_gradients(ctx);
  EXPECT_FALSE(leaf_of(store.all()[3]->value)->stale) << "it did not get a product this time";
  store.zero_main_gradients(ctx);
  EXPECT_EQ(test::largest(to_doubles(ctx, store.gradient_buffer())), 0);
  EXPECT_FALSE(leaf_of(store.all()[1]->value)->stale);
}

TEST(ParameterStore, without_training_there_are_no_gradients_and_no_leaves) {
  Context ctx(small_context());
  ParameterStore store;
  const ParameterPtr w = store.declare(spec("w", {4, 4}));
  store.materialise(ctx, false);
  EXPECT_FALSE(store.gradient_buffer().defined());
  EXPECT_FALSE(requires_grad(w->value));
  EXPECT_EQ(ctx.memory()->stats().current, ctx.memory()->stats().by_tag[static_cast<std::size_t>(MemoryTag::Weights)]);
  store.zero_main_gradients(ctx);
  store.start_main_gradients(ctx);
  store.finish_main_gradients(ctx);
}

std::vector<std::uint64_t> initial(int threads, std::uint64_t seed, const std::vector<std::string>& names, const std::string& wanted) {
  Context ctx(small_context(threads));
  ParameterStore store;
  for (const std::string& name : names) store.declare(spec(name, {300, 170}));
  store.materialise(ctx, false);
  store.initialise(ctx, seed);
  for (const ParameterPtr& parameter : store.all()) {
    if (parameter->spec.name == wanted) return test::bits_of(ctx, parameter->value);
  }
  return {};
}

TEST(InitialValues, depend_on_seed_and_name_alone) {
  const auto expected = initial(1, 7, {"a", "b", "c"}, "b");
  EXPECT_EQ(initial(1, 7, {"b"}, "b"), expected);
  EXPECT_EQ(initial(1, 7, {"c", "b", "a"}, "b"), expected);
  EXPECT_EQ(initial(3, 7, {"a", "b"}, "b"), expected) << "threads";
  EXPECT_NE(initial(1, 8, {"b"}, "b"), expected);
  EXPECT_NE(initial(1, 7, {"a"}, "a"), expected);
}

TEST(InitialValues, of_a_section_do_not_depend_on_what_it_is_fused_with) {
  Context ctx(small_context());
  ParameterStore fused, apart;
  ParameterSpec both = spec("w", {50, 8});
  both.sections = {{"first", 20}, {"second", 30}};
  fused.declare(both);
  apart.declare(spec("w.second", {30, 8}));
  for (ParameterStore* store : {&fused, &apart}) {
    store->materialise(ctx, true);
    store->initialise(ctx, 3);
  }
  EXPECT_EQ(test::bits_of(ctx, fused.logical()[1].value()), test::bits_of(ctx, apart.logical()[0].value()));
}

TEST(InitialValues, have_the_declared_distribution) {
  Context ctx(small_context());
  ParameterStore store;
  store.declare(spec("normal", {400, 100}, InitKind::Normal, 0.02));
  store.declare(spec("uniform", {400, 100}, InitKind::Uniform, 0.5));
  store.declare(spec("constant", {1000}, InitKind::Constant, 1.0));
  store.declare(spec("A_log", {40000}, InitKind::ALog));
  store.materialise(ctx, false);
  store.initialise(ctx, 5);
  const auto values = [&](std::size_t i) { return to_doubles(ctx, store.all()[i]->value); };
  const auto moments = [](const std::vector<double>& v) {
    double mean = 0, square = 0;
    for (double x : v) {
      mean += x;
      square += x * x;
    }
    mean /= static_cast<double>(v.size());
    return std::pair<double, double>(mean, std::sqrt(square / static_cast<double>(v.size()) - mean * mean));
  };
  const auto [mean, deviation] = moments(values(0));
  EXPECT_NEAR(mean, 0, 5 * 0.02 / 200);
  EXPECT_NEAR(deviation, 0.02, 0.0005);
  const auto [uniform_mean, uniform_deviation] = moments(values(1));
  EXPECT_NEAR(uniform_mean, 0, 0.01);
  EXPECT_NEAR(uniform_deviation, 1 / std::sqrt(12.0), 0.01);
  EXPECT_LE(test::largest(values(1)), 0.5);
  EXPECT_EQ(values(2), std::vector<double>(1000, 1.0));
  std::vector<double> a;
  for (double x : values(3)) {
    EXPECT_GE(x, 0);
    EXPECT_LE(x, std::log(16.0));
    a.push_back(std::exp(x));
  }
  EXPECT_NEAR(moments(a).first, 8.5, 0.15);  // uniform on [1, 16]
  EXPECT_NEAR(moments(a).second, 15 / std::sqrt(12.0), 0.1);
}

TEST(InitialValues, of_neighbouring_blocks_and_names_are_not_related) {
  Context ctx(small_context());
  ParameterStore store;
  for (const char* name : {"decoder.layers.0.w", "decoder.layers.1.w"}) store.declare(spec(name, {4, 16384}));
  store.materialise(ctx, false);
  store.initialise(ctx, 1);
  std::vector<std::vector<double>> rows;  // one block a row
  for (const ParameterPtr& parameter : store.all()) {
    for (int row = 0; row < 4; ++row) rows.push_back(to_doubles(ctx, parameter->value.slice(0, row, 1)));
  }
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t b = a + 1; b < rows.size(); ++b) {
      double dot = 0;
      for (std::size_t i = 0; i < rows[a].size(); ++i) dot += rows[a][i] * rows[b][i];
      EXPECT_LT(std::fabs(dot / (0.02 * 0.02 * 16384)), 5.0 / 128) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace deltron
