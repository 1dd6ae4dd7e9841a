// A hybrid model under recompute and offload: three steps of two micro-batches with dropout, recorded bit by bit, with what moved and
// what the device held behind each forward pass.
#pragma once

#include <set>

#include "src/autograd/offload_manager.h"
#include "src/autograd/recompute.h"
#include "src/config/region_table.h"
#include "tests/support/tiny_model.h"

namespace deltron::test {

struct Fusions {
  bool pre_rule = false, output_norm = false;
  bool on(const std::string& name) const {
    return (pre_rule && name == "gdn_pre_gated_delta_rule_fusion") || (output_norm && name == "gdn_gated_output_norm_fusion");
  }
  std::string name() const { return std::string(pre_rule ? "_pre_rule" : "") + (output_norm ? "_output_norm" : ""); }
};

struct OffloadKind {
  ExperimentalAttentionVariant variant = ExperimentalAttentionVariant::Gdn;
  DType dtype = DType::F32;
  std::int64_t batch = 1;
  Fusions fused = {};
};

// Layers: gdn, softmax, gdn, softmax, so that after the warm-up every module still has a group that moves.
inline TransformerConfig offload_config(const OffloadKind& kind, std::int64_t tokens) {
  TransformerConfig config = tiny_config();
  config.num_layers = 4;
  config.linear_attention_freq.pattern = {1, 0, 1, 0};
  config.experimental_attention_variant = kind.variant;
  config.gdn_pre_gated_delta_rule_fusion = kind.fused.pre_rule;
  config.gdn_gated_output_norm_fusion = kind.fused.output_norm;
  config.hidden_size = 6;
  if (kContextOnCuda && kind.dtype == DType::BF16) {  // sizes of the tensor-core kernels
    config.hidden_size = 16;
    config.linear_key_head_dim = config.linear_value_head_dim = 64;
  }
  config.vocab_size = tokens + 1;
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.3;
  return config;
}

struct OffloadCase {
  std::vector<std::string> recompute;  // "full" alone: full recompute by blocks of `full_layers`
  std::vector<std::string> offload;
  std::int64_t full_layers = 1;
  OffloadFaults faults = {};
  int steps = 3;

  std::string name() const {
    std::string text = "recompute:";
    for (const std::string& module : recompute) text += " " + module;
    text += ", offload:";
    for (const std::string& module : offload) text += " " + module;
    return text;
  }
  bool full() const { return recompute == std::vector<std::string>{"full"}; }
  RecomputePlan plan() const {
    RecomputeConfig config;
    if (recompute.empty()) return {};
    config.recompute_granularity = full() ? RecomputeGranularity::Full : RecomputeGranularity::Selective;
    if (!full()) config.recompute_modules = recompute;
    config.recompute_method = RecomputeMethod::Uniform;
    config.recompute_num_layers = full_layers;
    return make_recompute_plan(config);
  }
  // By the table that the validator reads.
  bool legal(const Fusions& fused) const {
    std::vector<const MemoryModule*> modules;
    for (const std::string& module : recompute) modules.push_back(find_module(full() ? ModuleUse::FullRecompute : ModuleUse::Recompute, module));
    for (const std::string& module : offload) modules.push_back(find_module(ModuleUse::Offload, module));
    for (const MemoryModule& module : memory_modules()) {
      if (module.use == ModuleUse::Fusion && fused.on(module.name)) modules.push_back(&module);
    }
    for (const MemoryModule* a : modules) {
      for (const MemoryModule* b : modules) {
        if (excluding_rule(*a, *b)) return false;
      }
    }
    for (const ModuleRequirement& need : module_requirements()) {
      const std::vector<std::string>& from = need.needed_use == ModuleUse::Offload ? offload : recompute;
      if (std::count(offload.begin(), offload.end(), need.name) != 0 && std::count(from.begin(), from.end(), need.needed) == 0) return false;
    }
    return true;
  }
};

struct OffloadRecord {
  std::vector<std::vector<std::uint64_t>> bits;  // losses, input gradients, parameter gradients
  std::vector<std::int64_t> behind_forward;      // device bytes, by step and micro-batch
  std::vector<OffloadRow> table;
  std::vector<OffloadStats> iterations;
  OffloadPool::Stats pool;
  std::map<std::string, RecomputeCounters> counters;

  std::int64_t bytes(int chunk, bool moved_alone) const {
    std::int64_t total = 0;
    for (const OffloadRow& row : table) {
      if (row.chunk == chunk && (!moved_alone || row.decision == OffloadDecision::Move)) total += row.bytes;
    }
    return total;
  }
};

inline OffloadRecord run_offload_case(const OffloadKind& kind, const std::vector<std::int64_t>& lengths, const OffloadCase& what) {
  std::int64_t tokens = 0;
  for (std::int64_t length : lengths) tokens += length;
  ModelRun m(offload_config(kind, tokens), kind.dtype);
  OffloadManager& manager = m.ctx.slot<OffloadManager>();
  OffloadOptions options;
  options.modules = what.offload;
  options.min_offloaded_tensor_size = 1;
  options.faults = what.faults;
  manager.configure(m.ctx, options);
  const RecomputePlan plan = what.plan();
  const auto gradient_of = [&](const std::string& name) {
    for (const ParameterPtr& parameter : m.model.parameters().all()) {
      if (parameter->spec.name == name) return parameter->main_gradient;
    }
    return Tensor();
  };
  OffloadRecord record;
  for (int step = 0; step < what.steps; ++step) {
    m.model.parameters().zero_main_gradients(m.ctx);
    for (int micro = 0; micro < 2; ++micro) {
      Batch batch = packed_batch(lengths, m.model.config().vocab_size, std::vector<int>(lengths.size(), 10 * step + micro));
      // Every token another id: then the rows of the embedding's gradient are the gradient of the decoder's input.
      for (std::int64_t t = 0; t < tokens; ++t) batch.ids[static_cast<std::size_t>(t)] = static_cast<std::int32_t>((t * 5 + 3 * micro + step) % (tokens + 1));
      EXPECT_EQ(std::set<std::int32_t>(batch.ids.begin(), batch.ids.end()).size(), batch.ids.size()) << "5 and the vocabulary have a factor in common";
      manager.begin_micro_batch(m.ctx);
      const Tensor loss = m.model.loss(m.ctx, int_tensor(m.ctx, batch.ids), int_tensor(m.ctx, batch.labels, "labels"), m.layout(batch),
                                       {.training = true, .recompute = plan}, 0.1);
      record.behind_forward.push_back(m.ctx.memory()->stats().current);
      record.bits.push_back(bits_of(m.ctx, loss));
      backward(m.ctx, {loss}, {make_tensor(m.ctx, {1}, DType::F64, {1.0}, "seed")});
      record.bits.push_back(bits_of(m.ctx, gradient_of("embedding.word_embeddings.weight")));
    }
    EXPECT_EQ(manager.pool().in_use, 0) << what.name();
    manager.reset(m.ctx);
    record.iterations.push_back(manager.last_iteration());
    record.bits.push_back(bits_of(m.ctx, m.model.parameters().gradient_buffer()));
    EXPECT_EQ(m.ctx.memory()->stats().saved, 0) << what.name() << ": nothing stays saved between steps";
    // Weights move between steps, so that something stale would show.
    for (const ParameterPtr& parameter : m.model.parameters().all()) {
      std::vector<double> values = to_doubles(m.ctx, parameter->value);
      const std::vector<double> gradient = to_doubles(m.ctx, parameter->main_gradient);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 0.05 * gradient[i];
      from_doubles(m.ctx, parameter->value.detached(), values);
    }
  }
  record.table = manager.table();
  record.pool = manager.pool();
  for (const std::string& region : what.recompute) record.counters[region] = recompute_counters(m.ctx, region);
  return record;
}

// The modules of `wanted` that go with this set of regions.
inline std::vector<std::string> legal_modules(const std::vector<std::string>& recompute, const std::vector<std::string>& wanted,
                                              const Fusions& fused) {
  std::vector<std::string> modules;
  for (const std::string& module : wanted) {
    std::vector<std::string> with = modules;
    with.push_back(module);
    if (OffloadCase{recompute, with}.legal(fused)) modules = with;
  }
  return modules;
}

}  // namespace deltron::test
