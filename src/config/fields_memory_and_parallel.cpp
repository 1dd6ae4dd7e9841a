// The keys of sections `recompute`, `offload` and `parallel`.
#include "src/config/region_table.h"
#include "src/config/section_fields.h"

namespace deltron {
namespace {

std::vector<RefusedWord> refused(ModuleUse use) {
  std::vector<RefusedWord> words;
  for (const RefusedModule& module : refused_modules()) {
    if (module.use == use) words.push_back({module.name, "rule " + std::to_string(module.number) + ": " + module.why});
  }
  return words;
}

}  // namespace

void add_memory_and_parallel_fields(std::vector<Field>& table) {
  constexpr double kMostRanks = 1000000.0;

  SectionFields<RecomputeConfig> r(table, "recompute", &RunConfig::recompute);
  using R = RecomputeConfig;
  r.add_words("recompute_granularity", &R::recompute_granularity, {"none", "full", "selective"},
              "recompute nothing, whole layers (full), or the regions of recompute_modules (selective)");
  r.add_words("recompute_method", &R::recompute_method, {"none", "uniform", "block"},
              "with full: groups of recompute_num_layers layers (uniform) or the first recompute_num_layers alone (block)");
  r.add("recompute_num_layers", &R::recompute_num_layers, "with full: layers a group, or layers recomputed; 0 = not set").at_least(0).in("layers");
  r.add_word_list("recompute_modules", &R::recompute_modules, module_words(ModuleUse::Recompute),
                  "with selective: the regions; nothing is implied");
  table.back().refused = refused(ModuleUse::Recompute);

  SectionFields<OffloadConfig> o(table, "offload", &RunConfig::offload);
  using O = OffloadConfig;
  o.add("fine_grained_activation_offloading", &O::fine_grained_activation_offloading, "copy chosen saved activations to host memory until backward");
  o.add_word_list("offload_modules", &O::offload_modules, module_words(ModuleUse::Offload),
                  "whose saved activations are offloaded");
  table.back().refused = refused(ModuleUse::Offload);
  o.add("min_offloaded_tensor_size", &O::min_offloaded_tensor_size, "smaller tensors stay on the device").at_least(0).in("elements");
  o.add("activation_offload_fraction", &O::activation_offload_fraction, "share of the eligible groups that is offloaded").at_least(0).at_most(1);
  o.add("fine_grained_offloading_max_inflight_offloads", &O::fine_grained_offloading_max_inflight_offloads,
        "copies to the host of one module that may be under way before compute waits for the oldest; 0 = waits for each; -1 = no cap of its own")
      .at_least(-1).at_most(1000000);

  SectionFields<ParallelConfig> p(table, "parallel", &RunConfig::parallel);
  using P = ParallelConfig;
  p.add("tensor_model_parallel_size", &P::tensor_model_parallel_size, "ranks over which heads and MLP channels are cut")
      .at_least(1).at_most(kMostRanks).in("ranks");
  p.add("sequence_parallel", &P::sequence_parallel, "cut norms and residual stream by tokens over the tensor-parallel ranks");
  p.add("context_parallel_size", &P::context_parallel_size, "ranks over which every sequence is cut").at_least(1).at_most(kMostRanks).in("ranks");
  p.add("pipeline_model_parallel_size", &P::pipeline_model_parallel_size, "reserved: 1").at_least(1).at_most(kMostRanks).in("ranks");
  p.add("overlap_grad_reduce", &P::overlap_grad_reduce, "gradients of a bucket travel between data ranks as soon as backward has made them; false: all behind it");
  p.add("ddp_bucket_size", &P::ddp_bucket_size, "gradients that travel at once, at least").at_least(1).at_most(1e12).in("elements");
  p.add_words("distributed_backend", &P::distributed_backend, {"auto", "nccl", "gloo"},
              "what carries tensors between ranks: nccl on cuda and gloo on the CPU (auto); gloo on cuda goes through host memory, for ranks that share a GPU");
  p.add("distributed_timeout_minutes", &P::distributed_timeout_minutes, "a rank that waits longer than this for others ends the job (exit code 7)")
      .above(0).at_most(100000).in("minutes");
}

}  // namespace deltron
