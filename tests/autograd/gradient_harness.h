// Checks a differentiable function three ways in fp64: against finite differences; each input's gradient must not depend, to the
// bit, on which other inputs want one; and the forward result must not depend on whether a graph is recorded.
#pragma once

#include "src/autograd/grad_check.h"
#include "tests/autograd/test_nodes.h"

namespace deltron::test {

inline constexpr double kGradientLimit = 1e-6;  // relative to the largest element of the same gradient
using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct Input {
  std::string name;
  Shape shape;
  double scale = 1.0;
  double shift = 0.0;
};

inline void check_gradients(Context& ctx, const std::vector<Input>& inputs, const Function& function, double limit = kGradientLimit) {
  std::vector<GradCheckInput> given;
  std::vector<Tensor> values, leaves;
  std::uint64_t seed = 40;
  for (const Input& input : inputs) {
    given.push_back({input.name, random_tensor(ctx, input.shape, DType::F64, seed++, input.scale, input.name.c_str(), input.shift)});
    values.push_back(given.back().value);
    leaves.push_back(make_leaf(values.back(), input.name));
  }
  const GradCheckResult result = grad_check(ctx, given, function);
  EXPECT_LE(result.worst, limit) << result.where;

  const auto run = [&](const std::vector<Tensor>& arguments) {
    std::vector<std::vector<std::uint64_t>> bits;
    std::vector<Tensor> roots, seeds;
    std::uint64_t which = 900;
    for (const Tensor& output : function(arguments)) {
      bits.push_back(bits_of(ctx, output));
      ++which;
      if (!requires_grad(output)) continue;
      roots.push_back(output);
      seeds.push_back(random_tensor(ctx, output.shape(), output.dtype(), which));
    }
    if (!roots.empty()) backward(ctx, roots, seeds);
    return bits;
  };
  const auto forward = run(leaves);
  EXPECT_EQ(run(values), forward) << "recording changes the result";
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<Tensor> alone = values;
    alone[i] = make_leaf(values[i], inputs[i].name);
    EXPECT_EQ(run(alone), forward);
    ASSERT_TRUE(gradient_of(alone[i]).defined()) << inputs[i].name;
    EXPECT_EQ(bits_of(ctx, gradient_of(alone[i])), bits_of(ctx, gradient_of(leaves[i]))) << inputs[i].name << " wanted alone";
  }
}

}  // namespace deltron::test
