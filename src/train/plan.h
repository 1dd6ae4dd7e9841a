// What a configuration costs, before it runs: parameters, memory by tag, FLOPs. The real model and the real step run on the meta
// device, where storages are counted and nothing is allocated, so that the plan cannot drift from the code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/autograd/offload_policy.h"
#include "src/base/memory_info.h"
#include "src/train/plan_ranks.h"
#include "src/train/session.h"

namespace deltron {

struct PlanTensor {
  std::string name;
  Shape shape;
  std::int64_t count = 0;
};

struct Plan {
  RunConfig config;
  std::vector<PlanTensor> parameters;   // logical tensors
  std::int64_t parameter_count = 0;
  MemoryStats memory;                   // after one step: peak and its table by tag
  std::int64_t saved_for_backward = 0;  // at its peak
  std::string attention;                // which kernels compute softmax attention; empty without
  double flops_per_token = 0;           // forward and backward, at the training length
  std::int64_t tokens_per_step = 0;
  std::vector<ScopeBytes> activations;  // by layer and region, at the end of a micro-batch's forward
  MemoryStats host_memory;              // of offloaded activations
  std::vector<OffloadModuleTotals> offload;  // by module, of an iteration
  std::string offload_text;             // the same as a table; empty without offload
  int ranks = 1;                        // of the job; the rest is of one of them
  RankGrid grid;
  std::vector<PlannedExchange> exchanges;  // a step
  PlannedStep step;                     // all zero without plan.achieved_tflops
  MachineMemory machine;                // what this machine has, whatever the training is planned for
  // What a training on the CPU takes of it: there the device and the host pool are one memory.
  std::int64_t machine_peak() const { return memory.peak + host_memory.peak; }
};

// Polls for stop requests; refuses sizes beyond any machine (capacity.h).
// Documents of a planned micro-batch fill the sequence length (no shorter ones: the case that needs most).
// `ranks`: of the job, at least those that hold one copy of the model.
Plan make_plan(const RunConfig& config, int ranks = 1);
std::string to_text(const Plan& plan);
std::string to_json(const Plan& plan);

// The planned micro-batch.
HostBatch planned_batch(const RunConfig& config);

}  // namespace deltron
