// Learning rates against a table that was computed apart from the code (plain formulas, in another language).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/optim/schedule.h"

namespace deltron {
namespace {

constexpr std::int64_t kDecayIterations = 20;

OptimizerConfig base() {
  OptimizerConfig config;
  config.lr = 8e-3;
  config.min_lr = 1e-3;
  config.lr_warmup_iters = 4;
  config.lr_wsd_decay_iters = 8;
  return config;
}

// Number of the update, counted from 1.
const std::vector<std::int64_t> kUpdates = {1, 2, 4, 5, 8, 12, 13, 16, 19, 20, 21, 100};

struct Row {
  const char* name;
  LrDecayStyle style;
  LrWsdDecayStyle wsd;
  std::vector<double> expected;  // one for each of kUpdates
};

TEST(Schedule, every_style_follows_its_table) {
  const std::vector<Row> rows = {
      {"constant",
       LrDecayStyle::Constant,
       LrWsdDecayStyle::Linear,
       {0.002, 0.004, 0.008, 0.008, 0.008, 0.008, 0.008, 0.008, 0.008, 0.008, 0.008, 0.008}},
      {"linear",
       LrDecayStyle::Linear,
       LrWsdDecayStyle::Linear,
       {0.002, 0.004, 0.008, 0.0075625, 0.00625, 0.0045, 0.0040625, 0.00275, 0.0014375, 0.001, 0.001, 0.001}},
      {"cosine",
       LrDecayStyle::Cosine,
       LrWsdDecayStyle::Linear,
       {0.002, 0.004, 0.008, 0.00793274848141, 0.00697487373415, 0.0045, 0.00381718387294, 0.00202512626585, 0.00106725151859, 0.001,
        0.001, 0.001}},
      {"WSD linear",
       LrDecayStyle::Wsd,
       LrWsdDecayStyle::Linear,
       {0.002, 0.004, 0.008, 0.008, 0.008, 0.008, 0.007125, 0.0045, 0.001875, 0.001, 0.001, 0.001}},
      {"WSD cosine",
       LrDecayStyle::Wsd,
       LrWsdDecayStyle::Cosine,
       {0.002, 0.004, 0.008, 0.008, 0.008, 0.008, 0.00773357836379, 0.0045, 0.00126642163621, 0.001, 0.001, 0.001}},
      {"WSD exponential",
       LrDecayStyle::Wsd,
       LrWsdDecayStyle::Exponential,
       {0.002, 0.004, 0.008, 0.008, 0.008, 0.008, 0.00683805660487, 0.00389949493661, 0.00163355412866, 0.001, 0.001, 0.001}},
      {"WSD minus_sqrt",
       LrDecayStyle::Wsd,
       LrWsdDecayStyle::MinusSqrt,
       {0.002, 0.004, 0.008, 0.008, 0.008, 0.008, 0.00552512626585, 0.00305025253169, 0.00145209957315, 0.001, 0.001, 0.001}},
  };
  for (const Row& row : rows) {
    OptimizerConfig config = base();
    config.lr_decay_style = row.style;
    config.lr_wsd_decay_style = row.wsd;
    for (std::size_t i = 0; i < kUpdates.size(); ++i) {
      EXPECT_NEAR(learning_rate(config, kDecayIterations, kUpdates[i] - 1), row.expected[i], 1e-13)
          << row.name << ", update " << kUpdates[i];
    }
  }
}

TEST(Schedule, without_warm_up_the_first_update_decays_already_and_the_last_reaches_the_end) {
  OptimizerConfig config = base();
  config.lr_warmup_iters = 0;
  config.lr_decay_style = LrDecayStyle::Linear;
  EXPECT_NEAR(learning_rate(config, 10, 0), 1e-3 + 0.9 * 7e-3, 1e-15);
  EXPECT_NEAR(learning_rate(config, 10, 9), 1e-3, 1e-15);
}

TEST(Schedule, a_warm_up_as_long_as_the_run_never_decays) {
  for (LrDecayStyle style : {LrDecayStyle::Constant, LrDecayStyle::Linear, LrDecayStyle::Cosine}) {
    OptimizerConfig config = base();
    config.lr_decay_style = style;
    config.lr_warmup_iters = 10;
    for (std::int64_t update = 1; update <= 10; ++update) {
      EXPECT_DOUBLE_EQ(learning_rate(config, 10, update - 1), 8e-3 * static_cast<double>(update) / 10);
    }
  }
}

TEST(Schedule, decays_never_rise_and_stay_between_their_ends) {
  for (LrDecayStyle style : {LrDecayStyle::Linear, LrDecayStyle::Cosine, LrDecayStyle::Wsd}) {
    for (LrWsdDecayStyle wsd : {LrWsdDecayStyle::Linear, LrWsdDecayStyle::Cosine, LrWsdDecayStyle::Exponential, LrWsdDecayStyle::MinusSqrt}) {
      OptimizerConfig config = base();
      config.lr_decay_style = style;
      config.lr_wsd_decay_style = wsd;
      config.lr_wsd_decay_iters = 300;
      for (std::int64_t step = config.lr_warmup_iters; step < 1100; ++step) {
        const double before = learning_rate(config, 1000, step - 1), now = learning_rate(config, 1000, step);
        ASSERT_LE(now, before + 1e-18) << step;
        ASSERT_GE(now, config.min_lr) << step;
        ASSERT_LE(now, config.lr) << step;
      }
    }
  }
}

}  // namespace
}  // namespace deltron
