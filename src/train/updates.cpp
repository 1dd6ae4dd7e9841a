// See updates.h.
#include "src/train/updates.h"

namespace deltron {
namespace {

std::vector<ShardedParameter> sharded_parameters(const ParameterStore& store) {
  std::vector<ShardedParameter> parameters;
  for (const ParameterPtr& parameter : store.all()) {
    ShardedParameter entry;
    entry.begin = parameter->main_gradient.offset() - store.gradient_buffer().offset();
    entry.row_elements = parameter->main_gradient.count() / parameter->spec.shape[0];
    for (const ParameterSection& section : parameter->spec.sections) entry.section_rows.push_back(section.rows);
    if (entry.section_rows.empty()) entry.section_rows.push_back(parameter->spec.shape[0]);
    parameters.push_back(entry);
  }
  return parameters;
}

// Does this rank count the gradient of a section in the norm? Of tensor-parallel ranks that hold the same, the first does.
bool counts_here(const ParallelState& place, const Parameter& parameter, std::size_t section) {
  const ParameterCut& cut = parameter.spec.sections.empty() ? parameter.spec.cut : parameter.spec.sections[section].cut;
  return cut.dim < 0 ? place.tp_rank() == 0 : cut.first_holder;
}

std::vector<ShardPiece> pieces_of_rank(const std::vector<GradientBucket>& buckets, int rank) {
  std::vector<ShardPiece> pieces;
  for (const GradientBucket& bucket : buckets) {
    const GradientShard& shard = bucket.shards[static_cast<std::size_t>(rank)];
    pieces.insert(pieces.end(), shard.pieces.begin(), shard.pieces.end());
  }
  return pieces;
}

}  // namespace

void make_updates(Session& session) {
  Context& ctx = *session.ctx;
  const RunConfig& config = session.config;
  const ParallelState& place = parallel_state(ctx);
  const ParameterStore& store = session.model->parameters();
  const std::shared_ptr<Communicator> group = place.data_context;
  const bool sharded = group && config.optimizer.use_distributed_optimizer;
  // One data rank: one shard, everything.
  const std::vector<GradientBucket> buckets = cut_gradients(sharded_parameters(store), config.parallel.ddp_bucket_size, group ? group->size() : 1);
  const std::vector<ShardPiece> own = pieces_of_rank(buckets, group ? group->rank() : 0);

  std::vector<OptimizedParameter> parameters;
  const auto optimize = [&](const ParameterPtr& parameter, std::int64_t begin, std::int64_t rows) {
    parameters.push_back({parameter->spec.name, parameter->value.slice(0, begin, rows).detached(), parameter->main_gradient.slice(0, begin, rows), parameter->spec.weight_decay});
    session.optimized.push_back({parameter, begin, rows});
  };
  if (sharded) {
    for (const ShardPiece& piece : own) optimize(store.all()[piece.parameter], piece.row_begin, piece.rows);
  } else {
    for (const ParameterPtr& parameter : store.all()) optimize(parameter, 0, parameter->spec.shape[0]);
  }

  NormedGradients normed;
  if (place.world) {
    normed.group = place.world;
    for (const ShardPiece& piece : own) {
      const ParameterPtr& parameter = store.all()[piece.parameter];
      if (!counts_here(place, *parameter, piece.section)) continue;
      normed.names.push_back(parameter->spec.name);
      normed.gradients.push_back(parameter->main_gradient.slice(0, piece.row_begin, piece.rows));
    }
  }
  session.optimizer = std::make_unique<Optimizer>(ctx, config.optimizer, std::move(parameters), std::move(normed));
  session.optimizer->masters_from_weights(ctx);
  if (!group) return;
  session.reducer = std::make_unique<GradientReducer>(ctx, group, store.gradient_buffer(), buckets, !sharded);
  if (config.parallel.overlap_grad_reduce) {
    for (std::size_t i = 0; i < store.all().size(); ++i) session.reducer->watch(i, leaf_of(store.all()[i]->value));
  }
  if (!sharded) return;
  std::vector<Tensor> weights;
  for (const ParameterPtr& parameter : store.all()) weights.push_back(parameter->value.detached());
  session.weight_gather = std::make_unique<WeightGather>(ctx, group, buckets, std::move(weights));
}

void sum_gradients_over_ranks(Session& session) {
  Context& ctx = *session.ctx;
  if (session.reducer) session.reducer->finish(ctx);
  // Behind it, so that a sharded rank has its shard's sums; of what it does not own the sums are as undefined as their terms.
  session.model->parameters().sum_partial_gradients(ctx);
}

}  // namespace deltron
