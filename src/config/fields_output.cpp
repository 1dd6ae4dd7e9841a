// The keys of sections `checkpoint` and `logging`.
#include "src/config/section_fields.h"

namespace deltron {

void add_output_fields(std::vector<Field>& table) {
  constexpr double kMost = 2147483647.0;

  SectionFields<CheckpointConfig> c(table, "checkpoint", &RunConfig::checkpoint);
  using C = CheckpointConfig;
  c.add("save", &C::save, "run folder: resolved configuration, metrics, log, checkpoints; empty = nothing is written");
  c.add("save_interval", &C::save_interval, "checkpoint every so many updates; 0 = at the end only").at_least(0).at_most(kMost).in("steps");
  c.add("keep_last", &C::keep_last, "newest checkpoints that are kept; 0 = all").at_least(0).at_most(kMost).in("checkpoints");
  c.add("keep_every", &C::keep_every, "with keep_last: multiples of this update are kept for ever; 0 = none").at_least(0).at_most(kMost).in("steps");
  c.add("resume", &C::resume, "auto: newest complete checkpoint of the run folder, if any; never; or a step number");

  SectionFields<LoggingConfig> l(table, "logging", &RunConfig::logging);
  using L = LoggingConfig;
  l.add("log_interval", &L::log_interval, "a console line every so many updates").at_least(1).at_most(kMost).in("steps");
  l.add("tensorboard", &L::tensorboard, "write TensorBoard event files into the run folder");
  l.add("log_per_layer_grad_norm", &L::log_per_layer_grad_norm, "log the gradient norm of every layer");
  l.add("loss_spike_z_score", &L::loss_spike_z_score, "warn when the loss is this many standard deviations above its recent mean; 0 = off").at_least(0);
  l.add("profile", &L::profile, "record where the time of a few steps goes: a trace in the run folder, ranges for nsys and ncu");
  l.add("profile_step_start", &L::profile_step_start, "recording begins when this step is done").at_least(0).at_most(kMost).in("steps");
  l.add("profile_step_end", &L::profile_step_end, "recording ends when this step is done").at_least(1).at_most(kMost).in("steps");
}

}  // namespace deltron
