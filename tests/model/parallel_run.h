// One step of a small model on ranks that are threads, and the same on one rank: loss and the gradient of every logical tensor, put together
// from the parts that the ranks hold. What the ranks must have in common is compared bit by bit on the way.
#pragma once

#include <map>
#include <mutex>

#include "distributed/local_batch.h"
#include "distributed/thread_communicator.h"
#include "src/autograd/offload_manager.h"
#include "tests/support/tiny_model.h"

namespace deltron::test {

struct Ranks {
  int tp = 1, cp = 1;
  bool sequence_parallel = false;
  int dp = 1;
  std::string name() const {
    return "tp" + std::to_string(tp) + (sequence_parallel ? "sp" : "") + "_cp" + std::to_string(cp) + (dp > 1 ? "_dp" + std::to_string(dp) : "");
  }
};

// 64 channels, 8 heads of 8, so that up to 8 ranks share them; a vocabulary that no number of ranks divides.
inline TransformerConfig parallel_config() {
  TransformerConfig config = tiny_config();
  config.num_layers = 2;
  config.hidden_size = 64;
  config.ffn_hidden_size = 48;
  config.vocab_size = 53;
  config.linear_attention_freq.pattern = {1, 0};
  config.linear_num_key_heads = 8;
  config.linear_num_value_heads = 8;
  config.linear_key_head_dim = 8;
  config.linear_value_head_dim = 8;
  config.linear_conv_kernel_dim = 4;
  config.num_attention_heads = 8;
  config.num_query_groups = 8;
  config.kv_channels = 8;
  config.init_method_std = 0.08;
  return config;
}

struct ParallelCase {
  TransformerConfig config = parallel_config();
  DType dtype = DType::F32;
  std::vector<std::int64_t> lengths = {64};
  RecomputePlan recompute = {};
  std::vector<std::string> offload = {};
  bool mask_first_half = false;  // no valid label in the first half of each document
};

struct ParallelResult {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;  // logical name -> whole gradient
  std::map<std::string, std::vector<double>> weights;    // as initialised
  std::vector<std::uint64_t> bits() const {
    std::vector<double> all = {loss};
    for (const auto& [name, gradient] : gradients) all.insert(all.end(), gradient.begin(), gradient.end());
    return bits_of(all);
  }
};

// The elements of a whole logical tensor that are here, as places in it, in the order of the part.
inline std::vector<std::size_t> places_of(const LogicalTensor& logical) {
  const Shape whole = logical.whole_shape(), begin = logical.offset();
  std::vector<std::size_t> places;
  const std::int64_t rows = logical.shape[0], cols = shape_count(logical.shape) / rows;
  const std::int64_t whole_cols = shape_count(whole) / whole[0], first_col = begin.size() > 1 ? begin[1] : 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) places.push_back(static_cast<std::size_t>((begin[0] + r) * whole_cols + first_col + c));
  }
  return places;
}

// Puts parts into the whole; what is there already must be the same.
inline void put_part(std::map<std::string, std::vector<double>>& all, const LogicalTensor& logical, const std::vector<double>& values) {
  std::vector<double>& whole = all[logical.name];
  whole.resize(static_cast<std::size_t>(shape_count(logical.whole_shape())), std::nan(""));
  const std::vector<std::size_t> places = places_of(logical);
  bool same = true;
  for (std::size_t i = 0; i < places.size(); ++i) {
    double& place = whole[places[i]];
    same = same && (std::isnan(place) || place == values[i]);
    place = values[i];
  }
  EXPECT_TRUE(same) << logical.name << " differs between ranks that hold the same part";
}

inline void spread_constants(Context& ctx, const ParameterStore& store) {
  for (const LogicalTensor& logical : store.logical()) {
    if (logical.parameter->spec.init != InitKind::Constant) continue;
    const std::vector<double> noise = random_values(shape_count(logical.whole_shape()), std::hash<std::string>{}(logical.name), 0.2);
    std::vector<double> values = to_doubles(ctx, logical.value());
    const std::vector<std::size_t> places = places_of(logical);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += noise[places[i]];
    from_doubles(ctx, logical.value(), values);
  }
}

// Runs a body on every rank of a job: threads here; another back end's tests bring their own.
using RankBody = std::function<void(int rank, const std::shared_ptr<Communicator>& world)>;
using RankRunner = std::function<void(int size, const RankBody& body)>;
inline void on_threads(int size, const RankBody& body) { run_thread_ranks(size, body); }

// The loss and what this rank holds of gradients and weights, behind all sums over ranks.
struct RankPart {
  LogicalTensor logical;
  std::vector<double> gradient, weight;
};
struct RankOutcome {
  double loss = 0;
  std::vector<RankPart> parts;
};

inline RankOutcome run_rank(Context& ctx, const ParallelCase& what, int steps) {
  const ParallelState& state = parallel_state(ctx);
  HybridLanguageModel model(ctx, what.config, what.dtype, true, 17);
  ParameterStore& store = model.parameters();
  store.initialise(ctx, 5);
  spread_constants(ctx, store);
  OffloadManager& offload = ctx.slot<OffloadManager>();
  OffloadOptions options;  // none is said, too: the context may have run another case before
  options.modules = what.offload;
  options.min_offloaded_tensor_size = 1;
  offload.configure(ctx, options);
  Batch batch = packed_batch(what.lengths, what.config.vocab_size);
  for (std::size_t d = 0; what.mask_first_half && d < what.lengths.size(); ++d) {
    for (std::int64_t t = 0; t < what.lengths[d] / 2; ++t) batch.labels[static_cast<std::size_t>(batch.offsets[d] + t)] = -1;
  }
  RankOutcome outcome;
  for (int step = 0; step < steps; ++step) {
    store.start_main_gradients(ctx);
    offload.begin_micro_batch(ctx);
    const LayoutPtr layout = local_layout(ctx, batch.offsets);
    const Tensor ids = int_tensor(ctx, local_tokens(ctx, batch.offsets, batch.ids));
    const Tensor labels = int_tensor(ctx, local_tokens(ctx, batch.offsets, batch.labels), "labels");
    const Tensor loss = model.loss(ctx, ids, labels, layout, {.training = true, .recompute = what.recompute}, 0.05 / state.dp());
    backward(ctx, {loss}, {make_tensor(ctx, {1}, DType::F64, {1.0}, "seed")});
    store.finish_main_gradients(ctx);
    offload.reset(ctx);
    store.sum_partial_gradients(ctx);
    if (state.data_context) {
      state.data_context->all_reduce(ctx, store.gradient_buffer(), "gradients");
      state.data_context->all_reduce(ctx, loss.detached(), "loss");
    }
    outcome.loss = to_doubles(ctx, loss)[0];
  }
  EXPECT_EQ(ctx.memory()->stats().saved, 0);
  for (const LogicalTensor& logical : store.logical()) {
    outcome.parts.push_back({logical, to_doubles(ctx, logical.slice(logical.parameter->main_gradient)), to_doubles(ctx, logical.value())});
  }
  return outcome;
}

inline ParallelResult run_parallel(const ParallelCase& what, const Ranks& ranks, int steps = 1, const RankRunner& runner = on_threads) {
  ParallelResult result;
  std::mutex mutex;
  const RankGrid grid{ranks.tp, ranks.cp, ranks.dp};
  runner(grid.size(), [&](int, const std::shared_ptr<Communicator>& world) {
    Context ctx(small_context());
    if (grid.size() > 1) set_parallel_state(ctx, world, grid, ranks.sequence_parallel);
    const RankOutcome outcome = run_rank(ctx, what, steps);
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(result.loss == 0 || result.loss == outcome.loss) << "ranks disagree about the loss";
    result.loss = outcome.loss;
    for (const RankPart& part : outcome.parts) {
      put_part(result.gradients, part.logical, part.gradient);
      put_part(result.weights, part.logical, part.weight);
    }
  });
  return result;
}

inline double rms_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

struct Limits {
  double loss = 1e-6, gradient = 1e-5, decay = 1e-4;
};

// What A_log, dt_bias and the decay's projection get comes through sums with much cancellation.
inline bool is_of_decay(const std::string& name) {
  for (const char* part : {"A_log", "dt_bias", ".alpha", ".f"}) {
    const std::size_t at = name.find(part);
    if (at != std::string::npos && at + std::strlen(part) == name.size()) return true;
  }
  return false;
}

struct Worst {
  double loss = 0, gradient = 0, decay = 0;
  std::string gradient_name, decay_name;
};

inline Worst compare(const ParallelResult& actual, const ParallelResult& expected, const Limits& limits, const std::string& title) {
  Worst worst;
  worst.loss = std::fabs(actual.loss - expected.loss) / std::fabs(expected.loss);
  EXPECT_LE(worst.loss, limits.loss) << title;
  EXPECT_EQ(actual.gradients.size(), expected.gradients.size()) << title;
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_GT(largest(gradient), 0) << title << ": " << name << " has a gradient to compare";
    const auto found = actual.gradients.find(name);
    if (found == actual.gradients.end()) {
      ADD_FAILURE() << title << ": " << name << " is nowhere";
      continue;
    }
    const double error = rms_difference(found->second, gradient);
    const bool decay = is_of_decay(name);
    EXPECT_LE(error, decay ? limits.decay : limits.gradient) << title << ": " << name;
    double& most = decay ? worst.decay : worst.gradient;
    if (!(error <= most)) {
      most = error;
      (decay ? worst.decay_name : worst.gradient_name) = name;
    }
  }
  return worst;
}

}  // namespace deltron::test
