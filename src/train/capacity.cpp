// See capacity.h.
#include "src/train/capacity.h"

#include <algorithm>
#include <cmath>

#include "src/base/human.h"
#include "src/base/log.h"
#include "src/train/plan.h"

namespace deltron {
namespace {

constexpr double kMostBytes = 1125899906842624.0;  // 1 PiB: sums of sizes below it stay far from the ends of 64 bits
constexpr double kHostBytesPerToken = 64;          // ids, labels, positions and sample numbers of a micro-batch, and a copy while it is built
constexpr std::int64_t kMostTokens = 2147483647;   // positions and offsets in a micro-batch have 31 bits

double as_double(std::int64_t value) { return static_cast<double>(value); }

double least_parameters(const TransformerConfig& model) {
  const double hidden = as_double(model.hidden_size);
  const double embedding = as_double(model.vocab_size) * hidden * (model.untie_embeddings_and_output_weights ? 2 : 1);
  const double mlp = 3 * hidden * as_double(model.ffn_hidden_size);
  const double linear = 2 * hidden * (as_double(model.linear_num_key_heads) * as_double(model.linear_key_head_dim) +
                                      as_double(model.linear_num_value_heads) * as_double(model.linear_value_head_dim));
  const double softmax = 2 * hidden * as_double(model.num_attention_heads) * as_double(head_dim(model));
  return embedding + as_double(model.num_layers) * mlp + as_double(linear_layer_count(model)) * linear +
         as_double(softmax_layer_count(model)) * softmax;
}

double micro_batch_tokens(const RunConfig& config) {
  return as_double(config.training.micro_batch_size) * as_double(config.training.seq_length);
}

std::string bytes_text(double bytes) { return human_bytes(static_cast<std::uint64_t>(std::min(bytes, 9e18))); }

}  // namespace

double least_bytes(const RunConfig& config) {
  const TransformerConfig& model = config.model;
  const double per_parameter = config.optimizer.optimizer == OptimizerKind::AdamW ? 16 : 8;
  const double widest = as_double(std::max({model.vocab_size, model.hidden_size, model.ffn_hidden_size}));
  return per_parameter * least_parameters(model) + 2 * micro_batch_tokens(config) * widest;
}

void require_plannable(const RunConfig& config) {
  const double tokens = micro_batch_tokens(config), least = least_bytes(config);
  const std::string sizes = human_count(least_parameters(config.model)) + " parameters or more, " + human_count(tokens) + " tokens a micro-batch";
  if (least > kMostBytes || tokens > as_double(kMostTokens)) {
    throw Error(ErrorCode::ConfigInconsistent,
                ErrorText{"these sizes are beyond any machine", "model and training", sizes + (least > kMostBytes ? ", at least " + bytes_text(least) : ""),
                          "at most 1 PiB in all, and below 2^31 tokens a micro-batch",
                          "look for a zero too many in num_layers, hidden_size, ffn_hidden_size, vocab_size, head counts and dims, seq_length, micro_batch_size"});
  }
  const MachineMemory machine = machine_memory();
  if (machine.total == 0 || tokens * kHostBytesPerToken <= as_double(machine.available)) return;
  throw Error(ErrorCode::OutOfMemory,
              ErrorText{"the token ids of a micro-batch alone exceed the free memory of this machine", "training.micro_batch_size x seq_length",
                        sizes + ": about " + bytes_text(tokens * kHostBytesPerToken) + "; free " + bytes_text(as_double(machine.available)), "",
                        "lower training.micro_batch_size or training.seq_length"});
}

void require_room(const RunConfig& config, const JobRanks& ranks) {
  if (config.training.device != DeviceKind::Cpu || config.training.memory_limit_gib > 0) return;
  const MachineMemory machine = machine_memory();
  if (machine.total == 0) return;
  require_plannable(config);
  const double least = least_bytes(config) * (ranks.size() > 1 ? 0 : 1);  // how much of it a rank holds, the plan tells
  const bool hopeless = least > as_double(machine.total);  // no need to count it out
  const double peak = hopeless ? least : as_double(make_plan(config, ranks.size()).machine_peak()) * ranks.local_size;
  const std::string values = std::string(hopeless ? "at least " : "") + bytes_text(peak) + " by plan; this machine has " +
                             bytes_text(as_double(machine.total)) + ", " + bytes_text(as_double(machine.available)) + " of it free";
  if (peak > as_double(machine.total)) {
    throw Error(ErrorCode::OutOfMemory, ErrorText{"the training does not fit into this machine", "cpu", values, "", "a smaller model"});
  }
  if (peak > as_double(machine.available)) log_warning("the training may not fit: it needs " + values);
}

std::int64_t memory_limit_bytes(const RunConfig& config) {
  if (config.training.memory_limit_gib <= 0) return 0;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(config.training.memory_limit_gib * 1024.0 * 1024.0 * 1024.0));
}

}  // namespace deltron
