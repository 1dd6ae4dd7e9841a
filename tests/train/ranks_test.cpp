// The training loop on several ranks, threads of this process: losses of one rank in every layout, the same bits twice, checkpoints that move
// between layouts, one decision to stop, one error for all.
#include "distributed/thread_communicator.h"
#include "src/config/schema.h"
#include "src/config/validate.h"
#include "src/train/plan.h"
#include "src/train/step_agreement.h"
#include "src/train/updates.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

struct Layout {
  std::string name;
  int ranks = 1, tp = 1, cp = 1;
  bool sequence_parallel = false;
  std::string verdict;  // "legal", or the code and a part of the message
  std::vector<std::string> keys(std::vector<std::string> more = {}) const {
    more.push_back("parallel.tensor_model_parallel_size=" + std::to_string(tp));
    more.push_back("parallel.context_parallel_size=" + std::to_string(cp));
    if (sequence_parallel) more.emplace_back("parallel.sequence_parallel=true");
    return more;
  }
};

// The table of docs/parallelism.md.
std::vector<Layout> layouts() {
  std::istringstream page(read_file(std::string(DELTRON_SOURCE_DIR) + "/docs/parallelism.md"));
  std::vector<Layout> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| layout |", 0) == 0) {
      inside = true;
    } else if (inside && line.rfind("| ", 0) == 0) {
      std::vector<std::string> cells;
      for (std::size_t begin = 2, end = 0; (end = line.find(" |", begin)) != std::string::npos; begin = end + 3) cells.push_back(line.substr(begin, end - begin));
      rows.push_back({cells.at(0), std::stoi(cells.at(1)), std::stoi(cells.at(2)), std::stoi(cells.at(4)), cells.at(3) == "yes", cells.at(5)});
    } else if (inside && line.rfind("|-", 0) != 0) {
      break;
    }
  }
  return rows;
}
Layout layout(const std::string& name) {
  for (const Layout& entry : layouts()) {
    if (name == entry.name) return entry;
  }
  throw std::out_of_range(name);
}

// Enough heads for tp 2 x cp 2, no two micro-batches on one rank of dp 2.
std::vector<std::string> wide(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"model.linear_num_key_heads=4", "model.linear_num_value_heads=4", "training.micro_batch_size=1", "training.train_iters=6"});
  return more;
}

class TrainOnRanks : public ::testing::Test {
 protected:
  TrainOnRanks() : prefix_(prepare_text(folder_, "text", made_text(30, 300))) {}

  // The outcome of rank 0; every rank's losses must be its.
  TrainOutcome train_on(const Layout& layout, const std::vector<std::string>& overrides, TrainOptions options = {}) {
    set_log_level(LogLevel::Error);
    const RunConfig config = tiny_config(prefix_, layout.keys(overrides));
    std::vector<TrainOutcome> outcomes(static_cast<std::size_t>(layout.ranks));
    run_thread_ranks(layout.ranks, [&](int rank, const std::shared_ptr<Communicator>& world) {
      TrainOptions mine = options;
      mine.ranks = job_of(world);
      outcomes[static_cast<std::size_t>(rank)] = train(config, mine);
    });
    set_log_file("");
    for (const TrainOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.losses, outcomes[0].losses);
      EXPECT_EQ(outcome.reason, outcomes[0].reason);
    }
    return outcomes[0];
  }

  TempFolder folder_;
  std::string prefix_;
};

TEST_F(TrainOnRanks, the_page_s_table_is_what_the_validator_says) {
  int legal = 0, refused = 0;
  for (const Layout& row : layouts()) {
    const RunConfig config = tiny_config(prefix_, wide());
    LoadedConfig loaded = read_config_text(to_yaml(config), "t.yaml", row.keys());
    std::string all;
    for (const std::string& fault : validate(loaded.config, loaded.sources, row.ranks)) all += fault + "\n";
    if (row.verdict == "legal") {
      EXPECT_EQ(all, "") << row.name;
      ++legal;
    } else {
      EXPECT_NE(all.find(row.verdict.substr(0, 4)), std::string::npos) << row.name << ": " << all;
      EXPECT_NE(all.find(row.verdict.substr(5)), std::string::npos) << row.name << ": " << all;
      ++refused;
    }
  }
  EXPECT_GE(legal, 9);
  EXPECT_GE(refused, 6);
}

class Layouts : public TrainOnRanks, public ::testing::WithParamInterface<std::string> {};

TEST_P(Layouts, losses_of_one_rank) {
  const TrainOutcome one = train_on(layout("one"), wide({"training.eval_interval=6"})), many = train_on(layout(GetParam()), wide({"training.eval_interval=6"}));
  ASSERT_EQ(many.losses.size(), 6U);
  for (std::size_t step = 0; step < 6; ++step) EXPECT_NEAR(many.losses[step], one.losses[step], 1e-4 * one.losses[step]) << "step " << step + 1;
  EXPECT_NEAR(many.losses[0], one.losses[0], 1e-6 * one.losses[0]);
  ASSERT_EQ(many.evaluation.size(), 1U);
  EXPECT_EQ(many.evaluation[0].predictions, one.evaluation[0].predictions);
  EXPECT_NEAR(many.evaluation[0].loss(), one.evaluation[0].loss(), 1e-4 * one.evaluation[0].loss());
}

TEST_P(Layouts, bf16_stays_beside_one_rank) {
  const TrainOutcome one = train_on(layout("one"), wide({"training.bf16=true"})), many = train_on(layout(GetParam()), wide({"training.bf16=true"}));
  for (std::size_t step = 0; step < 6; ++step) EXPECT_NEAR(many.losses[step], one.losses[step], 1e-2 * one.losses[step]) << "step " << step + 1;
}

TEST_P(Layouts, regions_and_offload_change_no_bit) {
  const TrainOutcome off = train_on(layout(GetParam()), wide());
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn_in_proj, gdn_qkv, gdn_norm_out, core_attn, mlp]"},
           {"offload.fine_grained_activation_offloading=true", "offload.offload_modules=[gdn_qkv, core_attn]", "offload.min_offloaded_tensor_size=1"}}) {
    EXPECT_EQ(train_on(layout(GetParam()), wide(keys)).losses, off.losses) << keys.back();
  }
}

TEST_P(Layouts, the_same_bits_twice) {
  std::map<std::string, std::string> hashes[2];
  for (int i = 0; i < 2; ++i) {
    const std::string run = folder_ / ("run" + std::to_string(i));
    train_on(layout(GetParam()), wide({"checkpoint.save=" + run, "training.exit_interval=3"}));
    for (const ManifestTensor& tensor : read_manifest(checkpoint_path(run, 3)).tensors) {
      hashes[i][tensor.name] = tensor.hash;
      for (const ManifestPiece& piece : tensor.pieces) hashes[i][tensor.name] += piece.hash;
    }
  }
  EXPECT_GT(hashes[0].size(), 60U);
  EXPECT_EQ(hashes[0], hashes[1]);
}

std::vector<std::string> legal_layouts() {
  std::vector<std::string> names;
  for (const Layout& row : layouts()) {
    if (row.verdict == "legal" && row.ranks > 1) names.push_back(row.name);
  }
  return names;
}
INSTANTIATE_TEST_SUITE_P(cases, Layouts, ::testing::ValuesIn(legal_layouts()), [](const ::testing::TestParamInfo<std::string>& entry) { return entry.param; });

// Saved at one layout, every other one goes on from it with the step that it would have made itself.
TEST_F(TrainOnRanks, checkpoints_move_between_layouts) {
  const std::string run = folder_ / "run";
  train_on(layout("tp2_dp2"), wide({"checkpoint.save=" + run, "training.exit_interval=3"}));
  TrainOptions from_run;
  from_run.load = run;
  const TrainOutcome same = train_on(layout("tp2_dp2"), wide({"checkpoint.save=" + (folder_ / "same")}), from_run);
  ASSERT_EQ(same.losses.size(), 3U);
  for (const char* other : {"one", "tp2_cp2", "tp4", "cp2_dp2", "dp2", "tp2_sp_cp2_dp2"}) {
    const std::string next = folder_ / other;
    const TrainOutcome moved = train_on(layout(other), wide({"checkpoint.save=" + next}), from_run);
    ASSERT_EQ(moved.losses.size(), 3U) << other;
    EXPECT_NEAR(moved.losses[0], same.losses[0], 1e-6 * same.losses[0]) << other;
    EXPECT_NEAR(moved.losses[2], same.losses[2], 1e-4 * same.losses[2]) << other;
    EXPECT_FALSE(moved.differences.empty()) << other << ": other ranks, other bits";
  }
}

// The optimizer's state cut over data ranks is the same optimizer, to the bit, with buckets of any size, with and without overlap.
TEST_F(TrainOnRanks, a_sharded_optimizer_trains_to_the_same_bits) {
  for (const char* name : {"dp2", "cp2_dp2", "tp2_sp_cp2_dp2"}) {
    const TrainOutcome whole = train_on(layout(name), wide({"training.bf16=true"}));
    for (const char* keys : {"parallel.ddp_bucket_size=1000", "parallel.ddp_bucket_size=5000", "parallel.overlap_grad_reduce=false"}) {
      const TrainOutcome sharded = train_on(layout(name), wide({"training.bf16=true", "optimizer.use_distributed_optimizer=true", keys}));
      EXPECT_EQ(sharded.losses, whole.losses) << name << " " << keys;
      const auto state = static_cast<std::size_t>(MemoryTag::OptimizerState);
      EXPECT_LT(sharded.memory.by_tag_at_peak[state], whole.memory.by_tag_at_peak[state] * 7 / 10) << name << " " << keys;
    }
  }
}

TEST_F(TrainOnRanks, a_sharded_optimizer_moves_between_layouts_too) {
  const std::string run = folder_ / "run";
  const std::vector<std::string> sharded = wide({"optimizer.use_distributed_optimizer=true", "parallel.ddp_bucket_size=3000", "logging.log_per_layer_grad_norm=true"});
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), sharded.begin(), sharded.end());
    return more;
  };
  const TrainOutcome whole = train_on(layout("tp2_dp2"), with({"checkpoint.save=" + (folder_ / "whole")}));
  train_on(layout("tp2_dp2"), with({"checkpoint.save=" + run, "training.exit_interval=3"}));
  TrainOptions from_run;
  from_run.load = run;
  for (const char* other : {"tp2_dp2", "one", "dp2", "tp2_cp2", "tp2_sp_cp2_dp2"}) {
    const TrainOutcome moved = train_on(layout(other), with({"checkpoint.save=" + (folder_ / other)}), from_run);
    ASSERT_EQ(moved.losses.size(), 3U) << other;
    if (std::string(other) == "tp2_dp2") {
      EXPECT_EQ(moved.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    }
    EXPECT_NEAR(moved.losses[0], whole.losses[3], 1e-6 * whole.losses[3]) << other;
  }
  EXPECT_EQ(metrics_lines(run, "train").front().at("layer_grad_norms").size(), 4U);
}

TEST_F(TrainOnRanks, resume_is_exact_on_the_same_layout) {
  const std::string run = folder_ / "run";
  const TrainOutcome whole = train_on(layout("tp2_dp2"), wide());
  train_on(layout("tp2_dp2"), wide({"checkpoint.save=" + run, "training.exit_interval=3"}));
  const TrainOutcome rest = train_on(layout("tp2_dp2"), wide({"checkpoint.save=" + run}));
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  EXPECT_TRUE(rest.differences.empty());
}

TEST_F(TrainOnRanks, not_a_number_on_one_rank_is_one_error_for_all) {
  const std::string run = folder_ / "run";
  TrainOptions options;
  options.inject_nan = parse_nan_injection("step=3,param=decoder.layers.0.self_attention.A_log,rank=1");
  std::vector<std::string> messages(2);
  const RunConfig config = tiny_config(prefix_, layout("dp2").keys(wide({"checkpoint.save=" + run})));
  EXPECT_THROW(run_thread_ranks(2,
                                [&](int rank, const std::shared_ptr<Communicator>& world) {
                                  TrainOptions mine = options;
                                  mine.ranks = job_of(world);
                                  try {
                                    train(config, mine);
                                  } catch (const Error& error) {
                                    messages[static_cast<std::size_t>(rank)] = error.what();
                                    throw;
                                  }
                                }),
               Error);
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_NE(messages[0].find("E600 step 3, rank 1, layer 0, decoder.layers.0.self_attention.A_log"), std::string::npos) << messages[0];
}

// A plan runs the real step on meta: memory and bytes of every exchange are those of a run.
TEST_F(TrainOnRanks, a_plan_counts_what_a_run_sends_and_holds) {
  for (const char* name : {"tp2_sp_cp2_dp2", "tp2_dp2", "cp2_dp2"}) {
    const Layout place = layout(name);
    const RunConfig config = tiny_config(prefix_, place.keys(wide({"optimizer.use_distributed_optimizer=true", "training.global_batch_size=6", "parallel.ddp_bucket_size=4000"})));
    const Plan plan = make_plan(config, place.ranks);
    EXPECT_EQ(plan.parameter_count, make_plan(tiny_config(prefix_, wide())).parameter_count) << "of the model, not of a rank";
    std::map<std::string, double> sent;
    std::int64_t peak = 0;
    run_thread_ranks(place.ranks, [&](int rank, const std::shared_ptr<Communicator>& world) {
      Session session = make_session(config, true, DeviceKind::Cpu, job_of(world));
      const ParallelState& state = parallel_state(*session.ctx);
      const std::vector<HostBatch> batches(static_cast<std::size_t>(6 / state.dp()), planned_batch(config));
      train_step(session, batches, 1e-3);  // learns when buckets can go
      world->barrier(*session.ctx, "all are there");
      for (const auto& group : {state.tensor, state.context, state.data_context, state.world}) {
        if (group) group->clear_totals();
      }
      session.ctx->memory()->reset_peak();
      train_step(session, batches, 1e-3);
      EXPECT_GT(session.reducer->issued_early(), 0) << "buckets leave while backward runs";
      if (rank != 0) return;
      peak = session.ctx->memory()->stats().peak;
      for (const auto& group : {state.tensor, state.context, state.data_context, state.world}) {
        if (!group) continue;
        for (const auto& [what, totals] : group->totals()) sent[group->label() + " " + collective_name(totals.kind) + " " + what] += totals.link_bytes;
      }
    });
    std::map<std::string, double> planned;
    for (const PlannedExchange& exchange : plan.exchanges) planned[exchange.group + " " + exchange.what] += exchange.bytes;
    ASSERT_EQ(planned.size(), sent.size()) << name;
    for (const auto& [what, bytes] : sent) EXPECT_NEAR(planned[what], bytes, 1e-9 * bytes) << name << " " << what;
    EXPECT_NEAR(static_cast<double>(plan.memory.peak), static_cast<double>(peak), 0.05 * static_cast<double>(peak)) << name;
  }
}

TEST(PlannedStep, exchanges_beside_backward_are_hidden_as_far_as_there_is_room) {
  RunConfig config;
  config.plan = {.achieved_tflops = 1, .ranks_per_node = 8, .link_gb_s = 100, .network_gb_s = 10};
  const std::vector<PlannedExchange> exchanges = {{"tp", "all-gather x", 2, false, false, 1, 1e9}, {"dp-cp", "reduce-scatter gradients", 16, true, true, 1, 5e9}};
  PlannedStep step = planned_step(config, exchanges, 3e12, 1);  // 3 s, of which 2 s are backward
  EXPECT_DOUBLE_EQ(step.compute, 3);
  EXPECT_DOUBLE_EQ(step.hidden, 0.5);
  EXPECT_DOUBLE_EQ(step.exposed, 0.01);
  step = planned_step(config, exchanges, 3e12, 10);  // backward of the last micro-batch: 0.2 s
  EXPECT_DOUBLE_EQ(step.hidden, 0.2);
  EXPECT_DOUBLE_EQ(step.total(), 3 + 0.01 + 0.3);
  config.plan.achieved_tflops = 0;
  EXPECT_EQ(planned_step(config, exchanges, 3e12, 1).total(), 0);
}

TEST(StepAgreement, counts_every_token_once_and_hears_every_stop) {
  run_thread_ranks(4, [](int rank, const std::shared_ptr<Communicator>& world) {
    HostChannel channel(world);
    StepAgreement agreement(channel);
    // Two data ranks, each of two ranks that hold the same batch.
    agreement.begin({.tokens = 64, .valid_tokens = 10 + 5 * (rank / 2), .attention_flops = 8}, 2, rank == 0);
    const AgreedStep agreed = agreement.finish();
    EXPECT_EQ(agreed.counts.tokens, 128);
    EXPECT_EQ(agreed.counts.valid_tokens, 25);
    EXPECT_EQ(agreed.counts.attention_flops, 16);
    EXPECT_EQ(agreed.stop, "training.exit_duration_in_mins");
    EXPECT_EQ(channel.exchange(std::string(static_cast<std::size_t>(rank), 'x')), (std::vector<std::string>{"", "x", "xx", "xxx"}));
    EXPECT_EQ(channel.from_first("rank " + std::to_string(rank)), "rank 0");
  });
}

}  // namespace
}  // namespace deltron
