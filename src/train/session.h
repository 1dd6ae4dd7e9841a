// What a command needs of a configuration: the context, the model, the optimizer, and the way from data options to batches.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "distributed/parallel_state.h"
#include "src/config/run_config.h"
#include "src/data/batch.h"
#include "src/data/data_source.h"
#include "src/model/hybrid_language_model.h"
#include "src/optim/gradient_reducer.h"
#include "src/optim/optimizer.h"
#include "src/optim/weight_gather.h"
#include "src/train/host_channel.h"
#include "src/train/job_ranks.h"

namespace deltron {

ContextOptions context_options(const RunConfig& config);
DType model_dtype(const RunConfig& config);
RankGrid rank_grid(const RunConfig& config, int ranks);
// Data options of a training or validation source; `seq_length` 0: the training length.
DataOptions data_options(const RunConfig& config, std::int64_t seq_length = 0);
bool has_data(const RunConfig& config);

// Rows of a parameter that one entry of the optimizer updates: all of them, or with a sharded optimizer those of this rank.
struct OptimizedRows {
  ParameterPtr parameter;
  std::int64_t row_begin = 0, rows = 0;
};

// Model and optimizer of one rank on one context.
struct Session {
  RunConfig config;
  JobRanks ranks = {};
  std::unique_ptr<HostChannel> channel;
  std::string doing = {};                        // "step 12"
  // Tells whoever watches this rank what it begins: "step 12, backward".
  void says(const char* phase) const {
    if (ranks.note) ranks.note(doing + ", " + phase);
  }
  std::unique_ptr<Context> ctx;
  std::unique_ptr<HybridLanguageModel> model;
  // All below: null or empty if not trainable.
  std::unique_ptr<Optimizer> optimizer;
  std::vector<OptimizedRows> optimized;          // what the optimizer's entries are, in its order
  std::unique_ptr<GradientReducer> reducer;      // with several data or context ranks
  std::unique_ptr<WeightGather> weight_gather;   // with a sharded optimizer
  std::map<std::string, std::string> data_content = {};  // prefix -> hashes of its files; filled by the training loop
};
// Hashes of the token files that a configuration names. Opens them: polls for stop signals.
std::map<std::string, std::string> data_content(const RunConfig& config);
// Allocates and initialises. `device` Meta: nothing is allocated, everything is counted. `ranks`: of a job of several; every rank calls it.
Session make_session(const RunConfig& config, bool trainable, DeviceKind device, const JobRanks& ranks = {});

// "tp 0 cp 1 dp 0, machine a, cuda:1 NVIDIA H200"
std::string rank_place_text(const Session& session);

// A micro-batch on the device: of several context-parallel ranks, this one's rows of it.
struct DeviceBatch {
  Tensor ids;     // I32 [T]
  Tensor labels;  // I32 [T]
  LayoutPtr layout;
};
DeviceBatch upload(Context& ctx, const HostBatch& batch);
// Lengthens documents so that the ranks of a model can share them evenly (pad_batch.h); nothing for one rank.
void pad_for_ranks(Context& ctx, HostBatch& batch);

}  // namespace deltron
