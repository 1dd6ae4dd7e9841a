// See attention_report.h.
#include "src/train/attention_report.h"

#include "src/autograd/attention_choice.h"

namespace deltron {
namespace {

AttentionChoice choice(Context& ctx, const RunConfig& config) {
  const TransformerConfig& model = config.model;
  kernels::FusedAttentionQuestion question;
  question.dtype = model_dtype(config);
  question.query_heads = model.num_attention_heads;
  question.kv_heads = query_groups(model);
  question.dim = head_dim(model);
  question.drop_probability = model.attention_dropout;
  question.longest = config.training.seq_length;
  return choose_attention(ctx, model.attention_backend, question);
}

}  // namespace

std::string attention_report(Context& ctx, const RunConfig& config) {
  const std::int64_t layers = softmax_layer_count(config.model);
  if (layers == 0) return {};
  return std::to_string(layers) + (layers == 1 ? " layer by " : " layers by ") + choice(ctx, config).text();
}

std::string attention_kernels(Context& ctx, const RunConfig& config) {
  return softmax_layer_count(config.model) == 0 ? std::string() : choice(ctx, config).kernels;
}

}  // namespace deltron
