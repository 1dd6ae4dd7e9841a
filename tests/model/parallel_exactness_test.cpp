// Layouts of ranks against one rank: tensor, sequence and context parallelism change neither the loss nor the gradient of any parameter by
// more than the order of their sums does.
#include <cstdio>

#include "tests/model/parallel_run.h"

namespace deltron {
namespace {

using test::Limits;
using test::ParallelCase;
using test::ParallelResult;
using test::Ranks;

const std::vector<Ranks>& layouts() {
  static const std::vector<Ranks> all = {{2, 1, false}, {2, 1, true}, {1, 2, false}, {2, 2, false}, {4, 1, false}, {2, 2, true}};
  return all;
}

struct Model {
  const char* name;
  void (*turn)(TransformerConfig&);
};
const Model kModels[] = {
    {"gdn", [](TransformerConfig& c) { c.linear_attention_freq.pattern = {1, 1}; }},
    {"gdn2",
     [](TransformerConfig& c) {
       c.linear_attention_freq.pattern = {1, 1};
       c.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
     }},
    {"softmax", [](TransformerConfig& c) { c.linear_attention_freq.pattern = {0, 0}; }},
    {"hybrid", [](TransformerConfig&) {}},
};

class Parallel : public ::testing::TestWithParam<std::tuple<int, bool>> {};

std::string parallel_name(const ::testing::TestParamInfo<std::tuple<int, bool>>& info) {
  return std::string(kModels[std::get<0>(info.param)].name) + (std::get<1>(info.param) ? "_packed" : "_dense");
}

ParallelCase case_of(const Model& model, bool packed) {
  ParallelCase what;
  model.turn(what.config);
  // 37, 51 and 40 tokens, padded to multiples of 2 * cp for cp up to 4; or two sequences of one length.
  what.lengths = packed ? std::vector<std::int64_t>{40, 56, 40} : std::vector<std::int64_t>{72, 72};
  return what;
}

void report(const std::string& title, const test::Worst& worst) {
  std::printf("    %-34s loss %.1e, gradients %.1e (%s), decay %.1e\n", title.c_str(), worst.loss, worst.gradient, worst.gradient_name.c_str(),
              worst.decay);
}

TEST_P(Parallel, every_layout_has_the_loss_and_the_gradients_of_one_rank) {
  const ParallelCase what = case_of(kModels[std::get<0>(GetParam())], std::get<1>(GetParam()));
  const ParallelResult expected = test::run_parallel(what, {});
  for (const Ranks& ranks : layouts()) {
    const ParallelResult actual = test::run_parallel(what, ranks);
    report(ranks.name(), test::compare(actual, expected, Limits{}, ranks.name()));
    for (const auto& [name, weights] : expected.weights) EXPECT_EQ(test::bits_of(actual.weights.at(name)), test::bits_of(weights)) << name;
  }
}

// In fp64 the order of sums is all but invisible, and a mistake that fp32's limits would let pass is not.
TEST(ParallelModel, fp64_agrees_to_its_own_rounding) {
  for (const bool second : {false, true}) {
    ParallelCase what;
    what.dtype = DType::F64;
    what.lengths = {40, 56, 40};
    what.config.num_query_groups = 2;
    what.config.hidden_dropout = what.config.attention_dropout = 0.1;
    if (second) what.config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
    const ParallelResult expected = test::run_parallel(what, {});
    for (const Ranks& ranks : layouts()) {
      report(ranks.name(), test::compare(test::run_parallel(what, ranks), expected, {1e-13, 1e-12, 1e-12}, ranks.name()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Parallel, ::testing::Combine(::testing::Range(0, 4), ::testing::Bool()), parallel_name);

}  // namespace
}  // namespace deltron
