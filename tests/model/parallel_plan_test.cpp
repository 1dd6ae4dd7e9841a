// A plan for a rank of many: the same model on meta, with groups that only count, and what a run on thread ranks uses.
#include "tests/model/parallel_run.h"

namespace deltron {
namespace {

using test::Ranks;

// A group of a size, with one representative rank: nothing is exchanged.
class CountingGroup : public Communicator {
 public:
  CountingGroup(int rank, int size, std::string label) : Communicator(rank, size, std::move(label)) {}
  const char* backend() const override { return "counting"; }
  void abort(const std::string&) override {}
  std::shared_ptr<Communicator> split_group(Context&, int, const std::string&) override { return nullptr; }

 protected:
  Event start(Context&, const Collective&, bool) override {
    Event event;
    event.signal();
    return event;
  }
};

struct Count {
  MemoryStats stats;
  std::vector<std::pair<std::string, CollectiveTotals>> tensor, context;
};

Count step_on(Context& ctx, const TransformerConfig& config, const RecomputePlan& plan) {
  const ParallelState& ranks = parallel_state(ctx);
  HybridLanguageModel model(ctx, config, DType::BF16, true, 17);
  model.parameters().initialise(ctx, 5);
  const test::Batch batch = test::packed_batch({40, 56, 40}, config.vocab_size);
  for (int step = 0; step < 2; ++step) {
    model.parameters().start_main_gradients(ctx);
    const LayoutPtr layout = local_layout(ctx, batch.offsets);
    const Tensor ids = test::int_tensor(ctx, local_tokens(ctx, batch.offsets, batch.ids));
    const Tensor labels = test::int_tensor(ctx, local_tokens(ctx, batch.offsets, batch.labels), "labels");
    const Tensor loss = model.loss(ctx, ids, labels, layout, {.training = true, .recompute = plan}, 0.05);
    backward(ctx, {loss}, {make_tensor(ctx, {1}, DType::F64, {1.0}, "seed")});
    model.parameters().finish_main_gradients(ctx);
    model.parameters().sum_partial_gradients(ctx);
  }
  return {ctx.memory()->stats(), ranks.tensor->totals(), ranks.context->totals()};
}

using Totals = std::vector<std::pair<std::string, CollectiveTotals>>;

void expect_same(const Totals& actual, const Totals& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].first, expected[i].first);
    EXPECT_EQ(actual[i].second.calls, expected[i].second.calls) << actual[i].first;
    EXPECT_EQ(actual[i].second.link_bytes, expected[i].second.link_bytes) << actual[i].first;
  }
}

TEST(ParallelPlan, counts_the_memory_and_the_bytes_of_a_run) {
  TransformerConfig config = test::parallel_config();
  config.num_query_groups = 2;
  config.hidden_dropout = 0.1;
  RecomputeConfig recompute;
  recompute.recompute_granularity = RecomputeGranularity::Selective;
  recompute.recompute_modules = {"gdn_in_proj", "gdn_norm_out", "mlp"};
  for (const bool sequence_parallel : {false, true}) {
    for (const RecomputePlan& plan : {RecomputePlan{}, make_recompute_plan(recompute)}) {
      const RankGrid grid{2, 2, 1};
      Count run;
      run_thread_ranks(grid.size(), [&](int rank, const std::shared_ptr<Communicator>& world) {
        Context ctx(test::small_context());
        set_parallel_state(ctx, world, grid, sequence_parallel);
        const Count mine = step_on(ctx, config, plan);
        if (rank == 0) run = mine;
      });
      Context meta(test::small_context(1, DeviceKind::Meta));
      ParallelState& state = parallel_state(meta);
      state.grid = grid;
      state.sequence_parallel = sequence_parallel;
      state.tensor = std::make_shared<CountingGroup>(0, 2, "tp");
      state.context = std::make_shared<CountingGroup>(0, 2, "cp");
      const Count planned = step_on(meta, config, plan);
      EXPECT_EQ(planned.stats.current, run.stats.current);
      EXPECT_EQ(planned.stats.peak, run.stats.peak);
      EXPECT_EQ(planned.stats.peak_by_tag, run.stats.peak_by_tag);
      EXPECT_EQ(planned.stats.peak_saved, run.stats.peak_saved);
      EXPECT_EQ(planned.stats.allocations, run.stats.allocations);
      expect_same(planned.tensor, run.tensor);
      expect_same(planned.context, run.context);
    }
  }
}

// What sequence parallelism is for: the residual stream and what norms keep of it, divided by the ranks.
TEST(ParallelPlan, sequence_parallelism_divides_what_the_residual_stream_keeps) {
  std::int64_t saved[2];
  for (const bool sequence_parallel : {false, true}) {
    Context meta(test::small_context(1, DeviceKind::Meta));
    ParallelState& state = parallel_state(meta);
    state.grid = {4, 1, 1};
    state.sequence_parallel = sequence_parallel;
    state.tensor = std::make_shared<CountingGroup>(0, 4, "tp");
    const TransformerConfig config = test::parallel_config();
    HybridLanguageModel model(meta, config, DType::BF16, true, 17);
    const test::Batch batch = test::packed_batch({64}, config.vocab_size);
    const Tensor loss = model.loss(meta, test::int_tensor(meta, batch.ids), test::int_tensor(meta, batch.labels), local_layout(meta, batch.offsets),
                                   {.training = true}, 1.0);
    saved[sequence_parallel ? 1 : 0] = meta.memory()->stats().peak_saved;
  }
  // Five inputs of norms (two layers of two, and the last) with a statistic a row.
  const std::int64_t rows = 64 - 64 / 4, row_bytes = 64 * 2 + 4;
  EXPECT_EQ(saved[0] - saved[1], 5 * rows * row_bytes);
}

}  // namespace
}  // namespace deltron
