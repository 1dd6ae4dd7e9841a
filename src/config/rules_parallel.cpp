// Rules about how the work is cut over ranks: heads, channels and tokens divide by the ranks that share them.
#include "src/config/rules.h"

namespace deltron {
namespace {

using std::to_string;

constexpr const char* kTensor = "parallel.tensor_model_parallel_size";
constexpr const char* kContext = "parallel.context_parallel_size";
constexpr const char* kVariant = "model.experimental_attention_variant";
constexpr const char* kFreq = "model.linear_attention_freq";

// Ranks over which heads are cut: tensor parallel, and context parallel, whose exchange hands every rank whole sequences of its
// heads.
std::int64_t head_ranks(const RuleContext& context) {
  return context.config.parallel.tensor_model_parallel_size * context.config.parallel.context_parallel_size;
}

std::string around(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return (below > 0 ? to_string(below) + " or " : "") + to_string(below + unit);
}

void sequence_parallel_needs_tensor_parallel(RuleContext& context) {
  if (context.config.parallel.tensor_model_parallel_size > 1) return;
  context.without_effect({"parallel.sequence_parallel"}, "it cuts tokens over the tensor-parallel ranks, and there is one",
                         {kTensor}, "remove it or set tensor_model_parallel_size to 2 or more");
}

void heads_divide(RuleContext& context, const std::string& name, std::int64_t heads) {
  const std::int64_t ranks = head_ranks(context);
  if (heads == 0 || heads % ranks == 0) return;
  context.report(ErrorCode::ConfigInconsistent, {name, kTensor, kContext, kVariant, kFreq},
                 {name + " is not a multiple of tensor x context parallel sizes", "", to_string(heads) + " and " + to_string(ranks),
                  "every rank has equally many whole heads", around(heads, ranks)});
}

void attention_heads_divide(RuleContext& context) {
  if (has_softmax_layers(context.config.model))
    heads_divide(context, "model.num_attention_heads", context.config.model.num_attention_heads);
}

void query_groups_divide(RuleContext& context) {
  const std::int64_t ranks = head_ranks(context), tensor_ranks = context.config.parallel.tensor_model_parallel_size;
  const std::int64_t groups =
      context.config.model.num_query_groups;  // unset: num_attention_heads, which attention_heads_divide checks
  if (!has_softmax_layers(context.config.model) || groups == 0) return;
  if ((groups % ranks == 0 || ranks % groups == 0) && groups % tensor_ranks != 0 && tensor_ranks % groups != 0) {
    context.report(ErrorCode::ConfigInconsistent, {"model.num_query_groups", kTensor, kVariant, kFreq},
                   {"model.num_query_groups is neither a multiple nor a divisor of tensor_model_parallel_size", "",
                    to_string(groups) + " and " + to_string(tensor_ranks),
                    "the weights of a rank have whole key heads, or equally many ranks hold one", "choose another number of groups or ranks"});
    return;
  }
  if (groups % ranks == 0 || ranks % groups == 0) return;
  context.report(ErrorCode::ConfigInconsistent, {"model.num_query_groups", kTensor, kContext, kVariant, kFreq},
                 {"model.num_query_groups is neither a multiple nor a divisor of tensor x context parallel sizes", "",
                  to_string(groups) + " and " + to_string(ranks), "a rank has whole key heads, or equally many ranks share one",
                  "choose another number of groups or ranks"});
}

void key_heads_divide(RuleContext& context) {
  if (has_linear_layers(context.config.model))
    heads_divide(context, "model.linear_num_key_heads", context.config.model.linear_num_key_heads);
}

void value_heads_divide(RuleContext& context) {
  if (has_linear_layers(context.config.model))
    heads_divide(context, "model.linear_num_value_heads", context.config.model.linear_num_value_heads);
}

void sequence_divides(RuleContext& context) {
  const std::int64_t ranks = context.config.parallel.context_parallel_size;
  const std::int64_t length = context.config.training.seq_length;
  if (ranks == 1 || length == 0 || length % (2 * ranks) == 0) return;
  context.report(
      ErrorCode::ConfigInconsistent, {"training.seq_length", kContext},
      {"training.seq_length is not a multiple of 2 x context_parallel_size", "", to_string(length) + " and " + to_string(2 * ranks),
       "every rank has one piece of each half of the sequence", around(length, 2 * ranks)});
}

void tokens_divide(RuleContext& context) {
  const TrainingConfig& training = context.config.training;
  const std::int64_t ranks = head_ranks(context);
  const std::int64_t tokens = training.micro_batch_size * training.seq_length;
  if (!context.config.parallel.sequence_parallel || tokens == 0 || tokens % ranks == 0) return;
  context.report(ErrorCode::ConfigInconsistent,
                 {"training.seq_length", "training.micro_batch_size", "parallel.sequence_parallel", kTensor, kContext},
                 {"the tokens of a micro-batch are no multiple of tensor x context parallel sizes", "",
                  to_string(tokens) + " and " + to_string(ranks), "sequence_parallel cuts tokens evenly",
                  "make micro_batch_size x seq_length " + around(tokens, ranks)});
}

void mlp_channels_divide(RuleContext& context) {
  const std::int64_t ranks = context.config.parallel.tensor_model_parallel_size;
  const std::int64_t channels = context.config.model.ffn_hidden_size;
  if (channels % ranks == 0) return;
  context.report(ErrorCode::ConfigInconsistent, {"model.ffn_hidden_size", kTensor},
                 {"model.ffn_hidden_size is not a multiple of tensor_model_parallel_size", "",
                  to_string(channels) + " and " + to_string(ranks), "every rank has equally many channels of the MLP",
                  around(channels, ranks)});
}

void nccl_needs_gpus(RuleContext& context) {
  if (context.config.parallel.distributed_backend != DistributedBackend::Nccl || context.config.training.device != DeviceKind::Cpu) return;
  context.report(ErrorCode::ConfigInconsistent, {"parallel.distributed_backend", "training.device"},
                 {"parallel.distributed_backend nccl exchanges memory of GPUs", "", "device cpu", "ranks on the CPU exchange through gloo",
                  "remove the key, or set training.device: cuda"});
}

}  // namespace

const std::vector<Rule>& parallel_rules() {
  static const std::vector<Rule> rules = {
      {"sequence_parallel_needs_tensor_parallel",
       {1, 30},
       "sequence_parallel is set only with tensor_model_parallel_size > 1",
       sequence_parallel_needs_tensor_parallel},
      {"attention_heads_divide",
       {4},
       "num_attention_heads is a multiple of tensor x context parallel sizes",
       attention_heads_divide},
      {"query_groups_divide",
       {5},
       "num_query_groups is a multiple or a divisor of tensor x context parallel sizes, and of the tensor parallel size",
       query_groups_divide},
      {"key_heads_divide", {17}, "linear_num_key_heads is a multiple of tensor x context parallel sizes", key_heads_divide},
      {"value_heads_divide", {18}, "linear_num_value_heads is a multiple of tensor x context parallel sizes", value_heads_divide},
      {"sequence_divides",
       {28},
       "under context parallelism seq_length is a multiple of 2 x context_parallel_size",
       sequence_divides},
      {"tokens_divide",
       {341},
       "with sequence_parallel, micro_batch_size x seq_length is a multiple of tensor x context parallel sizes",
       tokens_divide},
      {"mlp_channels_divide", {342}, "ffn_hidden_size is a multiple of tensor_model_parallel_size", mlp_channels_divide},
      {"nccl_needs_gpus", {343}, "distributed_backend nccl is set only with device cuda", nccl_needs_gpus},
  };
  return rules;
}

}  // namespace deltron
