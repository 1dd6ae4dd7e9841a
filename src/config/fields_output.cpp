// The keys of sections `checkpoint`, `logging` and `plan`.
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

  SectionFields<PlanConfig> p(table, "plan", &RunConfig::plan);
  using P = PlanConfig;
  p.add("achieved_tflops", &P::achieved_tflops, "what a rank's device reaches in whole training steps (`deltron bench step`: work); 0 = no step time").at_least(0).in("TFLOP/s");
  p.add("ranks_per_node", &P::ranks_per_node, "ranks whose devices are linked with each other").at_least(1).at_most(kMost).in("ranks");
  p.add("link_gb_s", &P::link_gb_s, "what one rank sends over those links while it receives as much; 0 = exchanges take no time").at_least(0).in("GB/s");
  p.add("network_gb_s", &P::network_gb_s, "what one rank sends to other nodes; 0 = exchanges between nodes take no time").at_least(0).in("GB/s");
}

}  // namespace deltron
