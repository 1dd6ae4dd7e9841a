// Rules about batch, schedule and optimizer.
#include "src/base/human.h"
#include "src/config/rules.h"

namespace deltron {
namespace {

using std::to_string;

void lengths_are_set(RuleContext& context) {
  if (context.config.training.seq_length == 0) context.missing("training.seq_length", "every run has it");
  if (context.config.training.train_iters == 0) context.missing("training.train_iters", "every run has it");
  if (!(context.config.optimizer.lr > 0.0)) context.missing("optimizer.lr", "every run has a learning rate > 0");
}

std::int64_t data_parallel_size(const RuleContext& context) {
  return context.world_size / RuleContext::model_ranks(context.config.parallel);
}

void ranks_divide(RuleContext& context) {
  const std::int64_t model_ranks = RuleContext::model_ranks(context.config.parallel);
  if (context.world_size % model_ranks == 0) return;
  context.report(ErrorCode::ConfigInconsistent,
                 {"parallel.tensor_model_parallel_size", "parallel.context_parallel_size", "parallel.pipeline_model_parallel_size"},
                 {"the ranks of the job are no multiple of tensor x context x pipeline parallel sizes", "",
                  to_string(context.world_size) + " ranks, product " + to_string(model_ranks), "data parallelism takes whole copies of the model",
                  "start a multiple of " + to_string(model_ranks) + " ranks"});
}

void global_batch_is_whole(RuleContext& context) {
  const TrainingConfig& training = context.config.training;
  const std::int64_t data_parallel = data_parallel_size(context);
  if (data_parallel == 0) return;  // ranks_divide has reported it
  const std::int64_t unit = training.micro_batch_size * data_parallel;
  if (training.global_batch_size % unit == 0) return;
  const std::int64_t below = training.global_batch_size / unit * unit;
  context.report(ErrorCode::ConfigInconsistent, {"training.global_batch_size", "training.micro_batch_size"},
                 {"training.global_batch_size is not a multiple of micro_batch_size x data-parallel ranks", "",
                  to_string(training.global_batch_size) + "; " + to_string(training.micro_batch_size) + " x " + to_string(data_parallel),
                  "every rank accumulates whole micro-batches",
                  (below > 0 ? to_string(below) + " or " : "") + to_string(below + unit)});
}

void always_deterministic(RuleContext& context) {
  if (context.config.training.deterministic_mode) return;
  context.report(ErrorCode::ConfigAlwaysDeterministic, {"training.deterministic_mode"},
                 {"training.deterministic_mode cannot be false", "", "",
                  "there is no non-deterministic mode: every reduction has a fixed order, and nothing would be faster without it", "remove the key"});
}

void eval_iters_need_an_interval(RuleContext& context) {
  if (context.config.training.eval_interval > 0) return;
  context.without_effect({"training.eval_iters"}, "read only with eval_interval > 0", {"training.eval_interval"}, "remove it or set eval_interval");
}

void min_lr_is_below_lr(RuleContext& context) {
  const OptimizerConfig& optimizer = context.config.optimizer;
  if (!(optimizer.lr > 0.0) || optimizer.min_lr <= optimizer.lr) return;
  context.report(ErrorCode::ConfigInconsistent, {"optimizer.min_lr", "optimizer.lr"},
                 {"optimizer.min_lr is above lr", "", shortest(optimizer.min_lr) + " and " + shortest(optimizer.lr), "the schedule decays from lr to min_lr",
                  "the largest legal value is " + shortest(optimizer.lr)});
}

void warmup_fits(RuleContext& context) {
  const OptimizerConfig& optimizer = context.config.optimizer;
  const std::int64_t train_iters = context.config.training.train_iters;
  if (train_iters == 0) return;
  const bool constant = optimizer.lr_decay_style == LrDecayStyle::Constant;
  const std::int64_t end = constant ? train_iters : decay_iters(context.config);
  const std::int64_t limit = end < train_iters ? end : train_iters;
  if (optimizer.lr_warmup_iters <= limit) return;
  context.report(ErrorCode::ConfigInconsistent,
                 {"optimizer.lr_warmup_iters", "optimizer.lr_decay_iters", "training.train_iters", "optimizer.lr_decay_style"},
                 {"optimizer.lr_warmup_iters is longer than the schedule", "", to_string(optimizer.lr_warmup_iters) + " of " + to_string(limit) + " updates",
                  "warm-up ends before the decay and the run do", "the largest legal value is " + to_string(limit)});
}

void decay_keys_need_a_decay(RuleContext& context) {
  if (context.config.optimizer.lr_decay_style != LrDecayStyle::Constant) return;
  context.without_effect({"optimizer.min_lr", "optimizer.lr_decay_iters"}, "lr_decay_style: constant does not decay", {"optimizer.lr_decay_style"},
                         "remove it or choose a decay");
}

void wsd_keys_need_wsd(RuleContext& context) {
  if (context.config.optimizer.lr_decay_style == LrDecayStyle::Wsd) return;
  context.without_effect({"optimizer.lr_wsd_decay_iters", "optimizer.lr_wsd_decay_style"}, "read only with lr_decay_style: WSD",
                         {"optimizer.lr_decay_style"}, "remove it or set lr_decay_style: WSD");
}

void wsd_decay_is_set_and_fits(RuleContext& context) {
  const OptimizerConfig& optimizer = context.config.optimizer;
  if (optimizer.lr_decay_style != LrDecayStyle::Wsd) return;
  if (optimizer.lr_wsd_decay_iters == 0) {
    context.missing("optimizer.lr_wsd_decay_iters", "WSD decays over its last lr_wsd_decay_iters updates", {"optimizer.lr_decay_style"});
    return;
  }
  const std::int64_t room = decay_iters(context.config) - optimizer.lr_warmup_iters;
  if (context.config.training.train_iters == 0 || room < 0 || optimizer.lr_wsd_decay_iters <= room) return;
  context.report(ErrorCode::ConfigInconsistent,
                 {"optimizer.lr_wsd_decay_iters", "optimizer.lr_decay_iters", "optimizer.lr_warmup_iters", "training.train_iters", "optimizer.lr_decay_style"},
                 {"optimizer.lr_wsd_decay_iters does not fit after the warm-up", "", to_string(optimizer.lr_wsd_decay_iters) + " of " + to_string(room) + " updates",
                  "warm-up and decay do not overlap", "the largest legal value is " + to_string(room)});
}

void adam_keys_need_adamw(RuleContext& context) {
  if (context.config.optimizer.optimizer == OptimizerKind::AdamW) return;
  context.without_effect({"optimizer.adam_beta1", "optimizer.adam_beta2", "optimizer.adam_eps"}, "read only with optimizer: adamw",
                         {"optimizer.optimizer"}, "remove it or set optimizer: adamw");
}

void decay_all_needs_a_decay(RuleContext& context) {
  if (context.config.optimizer.weight_decay > 0.0) return;
  context.without_effect({"optimizer.decay_all_parameters"}, "read only with weight_decay > 0", {"optimizer.weight_decay"},
                         "remove it or set weight_decay");
}

}  // namespace

const std::vector<Rule>& training_rules() {
  static const std::vector<Rule> rules = {
      {"lengths_are_set", {221}, "seq_length, train_iters and lr are set", lengths_are_set},
      {"ranks_divide", {29}, "all ranks are a multiple of tensor x context x pipeline parallel sizes", ranks_divide},
      {"global_batch_is_whole", {222}, "global_batch_size is a multiple of micro_batch_size x data-parallel ranks", global_batch_is_whole},
      {"always_deterministic", {223}, "deterministic_mode is true", always_deterministic},
      {"eval_iters_need_an_interval", {224}, "eval_iters is set only with eval_interval", eval_iters_need_an_interval},
      {"min_lr_is_below_lr", {225}, "min_lr is at most lr", min_lr_is_below_lr},
      {"warmup_fits", {226}, "lr_warmup_iters is at most train_iters and lr_decay_iters", warmup_fits},
      {"decay_keys_need_a_decay", {227}, "min_lr and lr_decay_iters are set only with a style that decays", decay_keys_need_a_decay},
      {"wsd_keys_need_wsd", {228}, "lr_wsd_* are set only with lr_decay_style: WSD", wsd_keys_need_wsd},
      {"wsd_decay_is_set_and_fits", {229}, "WSD has lr_wsd_decay_iters, and it fits after the warm-up", wsd_decay_is_set_and_fits},
      {"adam_keys_need_adamw", {230}, "adam_* are set only with optimizer: adamw", adam_keys_need_adamw},
      {"decay_all_needs_a_decay", {231}, "decay_all_parameters is set only with weight_decay > 0", decay_all_needs_a_decay},
  };
  return rules;
}

}  // namespace deltron
