// See plan.h.
#include "src/train/plan.h"

#include <nlohmann/json.hpp>

#include "src/base/human.h"
#include "src/autograd/offload_manager.h"
#include "src/model/flops.h"
#include "src/train/activation_offload.h"
#include "src/train/attention_report.h"
#include "src/train/capacity.h"
#include "src/train/step.h"

namespace deltron {

HostBatch planned_batch(const RunConfig& config) {
  HostBatch batch;
  const std::int64_t length = config.training.seq_length;
  Sample sample;
  sample.tokens.assign(static_cast<std::size_t>(length), 0);
  sample.labels.assign(static_cast<std::size_t>(length), 0);
  sample.segment_ends = {length};
  for (std::int64_t i = 0; i < config.training.micro_batch_size; ++i) append_sample(batch, i, sample);
  return batch;
}

Plan make_plan(const RunConfig& config, int ranks) {
  require_plannable(config);
  Plan plan;
  plan.config = config;
  plan.machine = machine_memory();
  JobRanks job;
  job.count = std::max(ranks, static_cast<int>(config.parallel.tensor_model_parallel_size * config.parallel.context_parallel_size));
  Session session = make_session(config, true, DeviceKind::Meta, job);
  plan.attention = attention_report(*session.ctx, config);
  for (const LogicalTensor& logical : session.model->parameters().logical()) {
    plan.parameters.push_back({logical.name, logical.whole_shape(), shape_count(logical.whole_shape())});
  }
  plan.parameter_count = session.model->parameters().whole_count();
  plan.ranks = job.count;
  plan.grid = rank_grid(config, job.count);
  const std::int64_t micro_batches = config.training.global_batch_size / config.training.micro_batch_size / plan.grid.dp;  // of a rank
  const HostBatch batch = planned_batch(config);
  // Micro-batches reuse each other's memory: one more than the first tells all.
  const std::vector<HostBatch> batches(static_cast<std::size_t>(std::min<std::int64_t>(micro_batches, 2)), batch);
  OffloadManager& offload = session.ctx->slot<OffloadManager>();
  const bool offloads = config.offload.fine_grained_activation_offloading;
  if (offloads) {  // the first iteration decides what moves, and is a part of every run
    train_step(session, batches, 1e-3);
    require_offload_effect(session);
    plan.offload = offload_by_module(offload.table());
    plan.offload_text = offload_report(session);
  }
  {  // what a forward pass leaves for its backward, by layer and region
    const DeviceBatch device = upload(*session.ctx, batch);
    offload.begin_micro_batch(*session.ctx);
    const Tensor loss = session.model->loss(*session.ctx, device.ids, device.labels, device.layout, {.training = true, .recompute = make_recompute_plan(config.recompute)}, 1.0);
    plan.activations = session.ctx->memory()->activations_by_scope();
  }
  offload.reset(*session.ctx);
  if (!offloads) session.ctx->memory()->reset_peak();
  train_step(session, batches, 1e-3);
  plan.memory = session.ctx->memory()->stats();
  plan.host_memory = session.ctx->host_memory()->stats();
  plan.saved_for_backward = plan.memory.peak_saved;
  if (plan.ranks > 1) {
    plan.exchanges = planned_exchanges(session, micro_batches, [&](std::int64_t count) {
      train_step(session, std::vector<HostBatch>(static_cast<std::size_t>(count), batch), 1e-3);
    });
  }
  plan.tokens_per_step = config.training.global_batch_size * config.training.seq_length;
  plan.flops_per_token = training_flops_per_token(config.model).total() +
                         attention_core_flops(config.model, {config.training.seq_length}) / static_cast<double>(config.training.seq_length);
  const double flops = plan.flops_per_token * static_cast<double>(plan.tokens_per_step) / plan.ranks;
  plan.step = planned_step(config, plan.exchanges, flops, micro_batches);
  return plan;
}

namespace {

std::string ranks_text(const Plan& plan) {
  std::string text;
  if (plan.ranks > 1) {
    text += "ranks       " + std::to_string(plan.ranks) + ": tp " + std::to_string(plan.grid.tp) + (plan.config.parallel.sequence_parallel ? " with sequence parallelism" : "") +
            " x cp " + std::to_string(plan.grid.cp) + " x dp " + std::to_string(plan.grid.dp) + "; what each sends a step:\n";
    for (const PlannedExchange& exchange : plan.exchanges) {
      std::string name = exchange.group + " " + exchange.what;
      name.resize(std::max<std::size_t>(name.size() + 2, 52), ' ');
      text += "  " + name + human_bytes(static_cast<std::uint64_t>(exchange.bytes)) + " in " + thousands(static_cast<std::int64_t>(exchange.calls)) + " calls, " +
              std::to_string(exchange.ranks) + " ranks" + (exchange.between_nodes ? " of several nodes" : "") + (exchange.overlapped ? ", beside backward" : "") + "\n";
    }
  }
  if (plan.step.total() > 0) {
    text += "time        " + fixed(1000 * plan.step.total(), 1) + " ms a step predicted (" + fixed(1000 * plan.step.compute, 1) + " compute, " +
            fixed(1000 * plan.step.exposed, 1) + " waiting for exchanges, " + fixed(1000 * plan.step.hidden, 1) + " of them hidden), " +
            thousands(static_cast<std::int64_t>(static_cast<double>(plan.tokens_per_step) / plan.step.total())) + " tokens per second\n";
  }
  return text;
}

}  // namespace

std::string to_text(const Plan& plan) {
  const auto bytes = [](std::int64_t value) { return human_bytes(static_cast<std::uint64_t>(value)); };
  std::string text;
  const TransformerConfig& model = plan.config.model;
  text += "model       " + std::to_string(model.num_layers) + " layers (" + std::to_string(linear_layer_count(model)) + " GDN, " +
          std::to_string(softmax_layer_count(model)) + " softmax attention), hidden " + std::to_string(model.hidden_size) + ", vocabulary " +
          std::to_string(model.vocab_size) + "\n";
  text += "parameters  " + thousands(plan.parameter_count) + " (" + human_count(static_cast<double>(plan.parameter_count)) + ")\n";
  if (!plan.attention.empty()) text += "attention   " + plan.attention + "\n";
  text += "step        " + thousands(plan.tokens_per_step) + " tokens, " +
          human_count(plan.flops_per_token * static_cast<double>(plan.tokens_per_step)) + " FLOPs (" + human_count(plan.flops_per_token) +
          " a token, forward and backward)\n";
  text += "memory      " + bytes(plan.memory.peak) + " at its peak (" + device_name(plan.config.training.device) + (plan.ranks > 1 ? ", each rank" : ", one rank") + "):\n";
  const std::int64_t limit = memory_limit_bytes(plan.config);
  if (limit > 0) text += "  limit             " + bytes(limit) + (plan.memory.peak > limit ? ": does not fit\n" : ": fits\n");
  if (limit == 0 && plan.machine.total > 0 && plan.config.training.device != DeviceKind::Cuda) {
    const char* verdict = plan.machine_peak() > plan.machine.total       ? ": does not fit\n"
                          : plan.machine_peak() > plan.machine.available ? ": more than is free now\n"
                                                                         : ": fits\n";
    text += "  this machine      " + bytes(plan.machine.total) + ", " + bytes(plan.machine.available) + " of it free" + verdict;
  }
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    const std::int64_t value = plan.memory.by_tag_at_peak[static_cast<std::size_t>(tag)];
    if (value > 0) {
      std::string name = memory_tag_name(static_cast<MemoryTag>(tag));
      name.resize(18, ' ');
      text += "  " + name + bytes(value) + "\n";
    }
  }
  text += ranks_text(plan);
  if (!plan.offload_text.empty()) {
    text += "host memory " + bytes(plan.host_memory.peak) + " for offloaded activations\n" + plan.offload_text;
  }
  text += "saved for backward  " + bytes(plan.saved_for_backward) + ", by layer and region:\n";
  for (const ScopeBytes& row : plan.activations) {
    std::string name = (row.layer >= 0 ? "layer " + std::to_string(row.layer) + " " : std::string()) + row.region;
    name.resize(std::max<std::size_t>(name.size() + 2, 28), ' ');
    text += "  " + name + bytes(row.bytes) + "\n";
  }
  return text;
}

std::string to_json(const Plan& plan) {
  nlohmann::ordered_json json;
  json["parameters"] = plan.parameter_count;
  if (!plan.attention.empty()) json["attention"] = plan.attention;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["flops_per_token"] = plan.flops_per_token;
  json["ranks"] = {{"count", plan.ranks}, {"tp", plan.grid.tp}, {"cp", plan.grid.cp}, {"dp", plan.grid.dp}};
  for (const PlannedExchange& exchange : plan.exchanges) {
    json["exchanges"].push_back({{"group", exchange.group}, {"what", exchange.what}, {"ranks", exchange.ranks}, {"between_nodes", exchange.between_nodes},
                                 {"overlapped", exchange.overlapped}, {"calls", exchange.calls}, {"bytes", exchange.bytes}});
  }
  if (plan.step.total() > 0) {
    json["predicted_step_seconds"] = {{"total", plan.step.total()}, {"compute", plan.step.compute}, {"exposed", plan.step.exposed}, {"hidden", plan.step.hidden}};
  }
  json["peak_bytes"] = plan.memory.peak;
  json["machine_bytes"] = plan.machine.total;
  json["machine_free_bytes"] = plan.machine.available;
  json["saved_for_backward_bytes"] = plan.saved_for_backward;
  if (!plan.offload.empty()) json["host_peak_bytes"] = plan.host_memory.peak;
  for (const OffloadModuleTotals& module : plan.offload) {
    json["offload"].push_back({{"module", module.name}, {"groups", module.groups}, {"bytes", module.bytes}, {"groups_offloaded", module.moved},
                               {"bytes_offloaded", module.bytes_moved}, {"groups_kept_at_once", module.kept_at_once},
                               {"groups_kept_fraction", module.kept_fraction}});
  }
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    json["peak_by_tag"][memory_tag_name(static_cast<MemoryTag>(tag))] = plan.memory.by_tag_at_peak[static_cast<std::size_t>(tag)];
  }
  for (const ScopeBytes& row : plan.activations) {
    json["activations"].push_back({{"layer", row.layer}, {"region", row.region}, {"bytes", row.bytes}});
  }
  for (const PlanTensor& tensor : plan.parameters) json["tensors"].push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  return json.dump(2);
}

}  // namespace deltron
