// See work.h.
#include "tools/bench/work.h"

#include <algorithm>

#include "src/base/check.h"

namespace deltron::tools {
namespace {

double number(std::int64_t value) { return static_cast<double>(value); }
constexpr double kChunk = 64;

// A pair of chunk products of which the lower half is needed.
double pairs(double dim) { return kChunk * kChunk * dim; }

}  // namespace

double Work::seconds(const Ceilings& ceilings) const { return std::max(bytes / ceilings.copy, flops / ceilings.products); }

double seconds(const std::vector<Work>& works, const Ceilings& ceilings) {
  double total = 0;
  for (const Work& work : works) total += work.seconds(ceilings);
  return total;
}

KernelSizes kernel_sizes(const RunConfig& config) {
  const TransformerConfig& model = config.model;
  KernelSizes sizes;
  sizes.tokens = config.training.micro_batch_size * config.training.seq_length;
  sizes.documents = config.training.micro_batch_size;
  sizes.hidden = model.hidden_size;
  sizes.ffn = model.ffn_hidden_size;
  sizes.vocab = model.vocab_size;
  if (linear_layer_count(model) > 0) {
    sizes.key_heads = model.linear_num_key_heads;
    sizes.value_heads = model.linear_num_value_heads;
    sizes.key_dim = model.linear_key_head_dim;
    sizes.value_dim = model.linear_value_head_dim;
    sizes.conv_kernel = model.linear_conv_kernel_dim;
    sizes.second_rule = model.experimental_attention_variant == ExperimentalAttentionVariant::Gdn2;
    sizes.pre_rule_fusion = model.gdn_pre_gated_delta_rule_fusion;
    sizes.output_norm_fusion = model.gdn_gated_output_norm_fusion;
  }
  if (linear_layer_count(model) < model.num_layers) {
    sizes.query_heads = model.num_attention_heads;
    sizes.kv_heads = query_groups(model);
    sizes.head_dim = head_dim(model);
    sizes.rotary_dim = rotary_dim(model);
    sizes.output_gate = model.attention_output_gate;
  }
  return sizes;
}

std::string problem_of(const KernelSizes& sizes) {
  const struct {
    const char* name;
    std::int64_t value;
  } needed[] = {{"tokens", sizes.tokens}, {"documents", sizes.documents}, {"hidden", sizes.hidden}, {"ffn", sizes.ffn}, {"vocab", sizes.vocab}};
  for (const auto& each : needed) {
    if (each.value < 1) return std::string(each.name) + " is " + std::to_string(each.value) + ", and must be at least 1";
  }
  if (sizes.documents > sizes.tokens) return "there are more documents than tokens";
  if (sizes.key_heads < 0 || sizes.query_heads < 0) return "a number of heads is below 0";
  if (sizes.linear() && (sizes.value_heads < 1 || sizes.value_heads % sizes.key_heads != 0)) return "value heads are no multiple of key heads";
  if (sizes.linear() && (sizes.key_dim < 1 || sizes.value_dim < 1 || sizes.conv_kernel < 1)) return "key dim, value dim and conv kernel must be at least 1";
  if (sizes.softmax() && (sizes.kv_heads < 1 || sizes.query_heads % sizes.kv_heads != 0)) return "query heads are no multiple of their groups";
  if (sizes.softmax() && sizes.head_dim < 1) return "the head dim must be at least 1";
  if (sizes.rotary_dim < 0 || sizes.rotary_dim % 2 != 0 || sizes.rotary_dim > sizes.head_dim) return "the rotary dim is odd or above the head dim";
  return "";
}

Work matmul_work(double m, double n, double k, double item, double item_out) { return {(m * k + k * n) * item + m * n * item_out, 2 * m * n * k}; }

Work stream_work(double elements, double item) { return {elements * item, 0}; }

Work rule_forward_work(const KernelSizes& sizes, bool second, double item) {
  const double T = number(sizes.tokens), K = number(sizes.key_dim), V = number(sizes.value_dim);
  const double head = kChunk * kChunk * kChunk / 6 + pairs(V) + 3 * kChunk * K * V;
  const double gates = second ? T * number(2 * sizes.dq() + sizes.dv()) : 2 * T * number(sizes.value_heads);
  Work work;
  work.flops = T / kChunk * 2 * (number(sizes.key_heads) * pairs(K) + number(sizes.value_heads) * head);
  work.bytes = item * (2 * T * number(sizes.dq()) + 2 * T * number(sizes.dv()) + gates);
  return work;
}

Work rule_backward_work(const KernelSizes& sizes, bool second, double item) {
  const double T = number(sizes.tokens), K = number(sizes.key_dim), V = number(sizes.value_dim);
  const double inverse = second ? pairs(K) / 2 + kChunk * kChunk * kChunk / 6 : 0;
  const double rebuild = inverse + pairs(V) / 2 + 2 * kChunk * K * V;
  const double reverse = (second ? pairs(K) / 2 : pairs(K)) + 2 * pairs(V) + 2 * pairs(K) + 6 * kChunk * K * V;
  const double gates = second ? T * number(2 * sizes.dq() + sizes.dv()) : 2 * T * number(sizes.value_heads);
  Work work;
  work.flops = T / kChunk * 2 * number(sizes.value_heads) * (rebuild + reverse);
  work.bytes = item * (4 * T * number(sizes.dq()) + 3 * T * number(sizes.dv()) + 2 * gates);  // q, k, v and their gradients, the output's
  return work;
}

namespace {

double causal_pairs(const KernelSizes& sizes) {
  const double length = number(sizes.tokens) / number(sizes.documents);
  return number(sizes.documents) * length * (length + 1) / 2;
}

}  // namespace

Work attention_forward_work(const KernelSizes& sizes, double item) {
  const double T = number(sizes.tokens), q = number(sizes.query_heads * sizes.head_dim), kv = number(sizes.kv_heads * sizes.head_dim);
  return {item * T * (2 * q + 2 * kv), 2 * 2 * causal_pairs(sizes) * q};
}

Work attention_backward_work(const KernelSizes& sizes, double item) {
  const double T = number(sizes.tokens), q = number(sizes.query_heads * sizes.head_dim), kv = number(sizes.kv_heads * sizes.head_dim);
  return {item * T * (4 * q + 4 * kv), 5 * 2 * causal_pairs(sizes) * q};
}

std::vector<Work> replay_work(const KernelSizes& sizes, const std::string& module, double item) {
  const double T = number(sizes.tokens), h = number(sizes.hidden), channels = number(sizes.conv_channels()), dv = number(sizes.dv());
  std::vector<Work> works;
  const bool whole = module == "gdn", block = module == "gdn_qkv_block";
  if (whole || block || module == "gdn_in_proj") {
    works.push_back(stream_work(2 * T * h, item));
    works.push_back(matmul_work(T, channels, h, item, item));
    works.push_back(matmul_work(T, number(sizes.gate_channels(sizes.second_rule)), h, item, item));
  }
  if (whole || block || module == "gdn_qkv") {
    works.push_back(stream_work(2 * T * channels, item));
    if (!sizes.pre_rule_fusion) works.push_back(stream_work(2 * T * number(2 * sizes.dq()), item));
  }
  if (whole || module == "gdn_core_attn") works.push_back(rule_forward_work(sizes, sizes.second_rule, item));
  if (whole && !sizes.output_norm_fusion) works.push_back(stream_work(2 * T * dv, item));  // the copy of the gate
  if (whole || module == "gdn_norm_out") works.push_back(stream_work(3 * T * dv, item));
  if (module == "mlp") {
    const double ffn = number(sizes.ffn);
    works.push_back(stream_work(2 * T * h, item));
    works.push_back(matmul_work(T, 2 * ffn, h, item, item));
    works.push_back(stream_work(3 * T * ffn, item));
    works.push_back(matmul_work(T, h, ffn, item, item));
  }
  if (module == "core_attn") {
    works.push_back(stream_work(2 * T * number((sizes.query_heads + sizes.kv_heads) * sizes.head_dim), item));  // norm and rotation of q and k
    works.push_back(attention_forward_work(sizes, item));
  }
  DELTRON_CHECK(!works.empty(), "no work is known of recompute module '", module, "'");
  return works;
}

}  // namespace deltron::tools
