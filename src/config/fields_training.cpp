// The keys of sections `training` and `optimizer`.
#include "src/config/section_fields.h"

namespace deltron {

void add_training_fields(std::vector<Field>& table) {
  constexpr double kMost = 2147483647.0;

  SectionFields<TrainingConfig> t(table, "training", &RunConfig::training);
  using T = TrainingConfig;
  t.add_words("device", &T::device, {"cpu", "cuda", "meta"}, "where it runs; meta counts memory and operations without computing");
  t.add("bf16", &T::bf16, "weights and activations in bf16; master weights, gradients and optimizer state stay fp32");
  t.add("micro_batch_size", &T::micro_batch_size, "sequences a rank processes at once").at_least(1).at_most(kMost).in("sequences");
  t.add("global_batch_size", &T::global_batch_size,
        "sequences an update; a multiple of micro_batch_size x data-parallel ranks, the rest is gradient accumulation")
      .at_least(1).at_most(kMost).in("sequences");
  t.add("seq_length", &T::seq_length, "tokens a sequence; required").at_least(0).at_most(kMost).in("tokens");
  t.add("train_iters", &T::train_iters, "updates of the whole run; required").at_least(0).at_most(kMost).in("steps");
  t.add("eval_interval", &T::eval_interval, "evaluate on the validation split every so many updates; 0 = never while training")
      .at_least(0).at_most(kMost).in("steps");
  t.add("eval_iters", &T::eval_iters, "global batches an evaluation; 0 = the whole validation split").at_least(0).at_most(kMost).in("batches");
  t.add("seed", &T::seed, "seed of initial weights, dropout and data order").at_least(0);
  t.add("threads", &T::threads, "CPU worker threads; 0 = all cores; recorded in the run, as bits depend on it").at_least(0).at_most(1024).in("threads");
  t.add("deterministic_mode", &T::deterministic_mode, "always true: Deltron has no non-deterministic mode");
  t.add("exit_interval", &T::exit_interval, "save and stop with exit code 75 at every multiple of this update; 0 = off")
      .at_least(0).at_most(kMost).in("steps");
  t.add("exit_duration_in_mins", &T::exit_duration_in_mins, "save and stop with exit code 75 at the first update after this time, start-up counted; fractions are allowed; 0 = off")
      .at_least(0).at_most(kMost).in("minutes");
  t.add("memory_limit_gib", &T::memory_limit_gib, "device memory that a rank may use; past it: out of memory; 0 = what the device has")
      .at_least(0).at_most(1048576).in("GiB");

  SectionFields<OptimizerConfig> o(table, "optimizer", &RunConfig::optimizer);
  using O = OptimizerConfig;
  o.add_words("optimizer", &O::optimizer, {"adamw", "sgd"}, "AdamW with decoupled weight decay, or plain SGD");
  o.add("lr", &O::lr, "peak learning rate; required").at_least(0).at_most(1000);
  o.add("min_lr", &O::min_lr, "learning rate at the end of the decay").at_least(0).at_most(1000);
  o.add_words("lr_decay_style", &O::lr_decay_style, {"constant", "linear", "cosine", "WSD"},
              "shape of the decay after warm-up; WSD = stable, then decay over the last lr_wsd_decay_iters");
  o.add("lr_decay_iters", &O::lr_decay_iters, "update at which min_lr is reached; 0 = train_iters").at_least(0).at_most(kMost).in("steps");
  o.add("lr_warmup_iters", &O::lr_warmup_iters, "updates over which the learning rate rises linearly to lr").at_least(0).at_most(kMost).in("steps");
  o.add("lr_wsd_decay_iters", &O::lr_wsd_decay_iters, "length of WSD's decay; required with WSD").at_least(0).at_most(kMost).in("steps");
  o.add_words("lr_wsd_decay_style", &O::lr_wsd_decay_style, {"linear", "cosine", "exponential", "minus_sqrt"}, "shape of WSD's decay");
  o.add("weight_decay", &O::weight_decay, "decoupled weight decay").at_least(0).at_most(1000);
  o.add("adam_beta1", &O::adam_beta1, "decay of the first moment").at_least(0).below(1);
  o.add("adam_beta2", &O::adam_beta2, "decay of the second moment").at_least(0).below(1);
  o.add("adam_eps", &O::adam_eps, "added to the root of the second moment").above(0).at_most(1);
  o.add("clip_grad", &O::clip_grad, "largest global gradient norm; 0 = no clipping").at_least(0);
  o.add("decay_all_parameters", &O::decay_all_parameters, "decay 1-D tensors, A_log and dt_bias too (parity with trainers that do)");
  o.add("use_distributed_optimizer", &O::use_distributed_optimizer, "shard optimizer state over the data-parallel ranks");
}

}  // namespace deltron
