// Every pair of features together on several ranks, in as few runs as a greedy covering array needs: five AdamW steps against one rank. And what
// plain SGD makes of five steps, weight by weight.
#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "distributed/thread_communicator.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/reshard.h"
#include "src/config/schema.h"
#include "src/config/validate.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;
using Keys = std::vector<std::string>;

struct Feature {
  const char* name;
  std::vector<Keys> values;
};

// The first value of the layout is one rank's; its number of ranks is told by ranks_of().
const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"layout",
       {{"parallel.tensor_model_parallel_size=2"},
        {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"},
        {"parallel.context_parallel_size=2"},
        {"parallel.tensor_model_parallel_size=2", "parallel.context_parallel_size=2"},
        {"parallel.tensor_model_parallel_size=1"},
        {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true", "parallel.context_parallel_size=2"}}},
      {"mixer",
       {{"model.experimental_attention_variant=gdn", "model.linear_attention_freq=[1, 0]"},
        {"model.experimental_attention_variant=gdn2", "model.linear_attention_freq=[0, 1]"},
        {"model.experimental_attention_variant=gdn", "model.linear_attention_freq=[1, 1]"}}},
      {"packing", {{"data.packing=windows"}, {"data.packing=documents"}}},
      {"pre-rule fusion", {{}, {"model.gdn_pre_gated_delta_rule_fusion=true"}}},
      {"output-norm fusion", {{}, {"model.gdn_gated_output_norm_fusion=true"}}},
      {"recompute",
       {{},
        {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn_in_proj, gdn_norm_out]"},
        {"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn, mlp]"},
        {"recompute.recompute_granularity=full", "recompute.recompute_method=uniform", "recompute.recompute_num_layers=1"}}},
      {"offload", {{}, {"offload.fine_grained_activation_offloading=true", "offload.offload_modules=[gdn_core_attn]", "offload.min_offloaded_tensor_size=1"}}},
      {"output", {{}, {"model.untie_embeddings_and_output_weights=true"}}},
      {"optimizer", {{}, {"optimizer.use_distributed_optimizer=true", "parallel.ddp_bucket_size=3000"}}},
      {"micro-batches", {{"training.global_batch_size=4"}, {"training.global_batch_size=8"}}},
      {"vocabulary", {{"model.vocab_size=264"}, {"model.vocab_size=267"}}},
  };
  return all;
}

int ranks_of(const Keys& layout) {
  int ranks = 1;
  for (const std::string& key : layout) {
    if (key.find("parallel_size=2") != std::string::npos) ranks *= 2;
  }
  // The last layout has two data ranks besides, and the one without cuts is two data ranks.
  return ranks == 1 ? 2 : layout.size() == 3 ? 2 * ranks : ranks;
}

Keys keys_of(const std::vector<std::size_t>& choice) {
  Keys keys = {"model.linear_num_key_heads=4", "training.micro_batch_size=1", "training.train_iters=5", "model.hidden_dropout=0", "model.attention_dropout=0"};
  for (std::size_t f = 0; f < choice.size(); ++f) {
    const Keys& more = features()[f].values[choice[f]];
    keys.insert(keys.end(), more.begin(), more.end());
  }
  return keys;
}

// Rows such that every pair of values of two features that may stand together stands in one of them: each row takes, feature by feature, the
// value that covers most that is left.
std::vector<std::vector<std::size_t>> covering_rows(const std::string& prefix, std::size_t& pairs) {
  const std::vector<Feature>& all = features();
  const auto legal = [&](const std::vector<std::size_t>& choice) {
    LoadedConfig loaded = read_config_text(to_yaml(tiny_config(prefix)), "t.yaml", keys_of(choice));
    return loaded.faults.empty() && validate(loaded.config, loaded.sources, ranks_of(all[0].values[choice[0]])).empty();
  };
  const std::vector<std::size_t> plain(all.size(), 0);
  std::set<std::array<std::size_t, 4>> left;
  for (std::size_t f = 0; f < all.size(); ++f) {
    for (std::size_t g = f + 1; g < all.size(); ++g) {
      for (std::size_t a = 0; a < all[f].values.size(); ++a) {
        for (std::size_t b = 0; b < all[g].values.size(); ++b) {
          std::vector<std::size_t> choice = plain;
          choice[f] = a, choice[g] = b;
          if (legal(choice)) left.insert({f, a, g, b});
        }
      }
    }
  }
  pairs = left.size();
  std::vector<std::vector<std::size_t>> rows;
  while (!left.empty()) {
    const auto seed = *left.begin();
    std::vector<std::size_t> choice = plain;
    choice[seed[0]] = seed[1], choice[seed[2]] = seed[3];
    const auto covers = [&](const std::vector<std::size_t>& row) {
      std::size_t count = 0;
      for (const auto& pair : left) count += row[pair[0]] == pair[1] && row[pair[2]] == pair[3] ? 1 : 0;
      return count;
    };
    for (std::size_t f = 0; f < all.size(); ++f) {
      if (f == seed[0] || f == seed[2]) continue;
      std::size_t best = choice[f], most = covers(choice);
      for (std::size_t v = 0; v < all[f].values.size(); ++v) {
        std::vector<std::size_t> other = choice;
        other[f] = v;
        if (covers(other) > most && legal(other)) best = v, most = covers(other);
      }
      choice[f] = best;
    }
    for (auto pair = left.begin(); pair != left.end();) {
      pair = choice[(*pair)[0]] == (*pair)[1] && choice[(*pair)[2]] == (*pair)[3] ? left.erase(pair) : std::next(pair);
    }
    rows.push_back(choice);
  }
  return rows;
}

class RanksTogether : public ::testing::Test {
 protected:
  RanksTogether() : prefix_(prepare_text(folder_, "text", made_text(30, 300))) {}

  TrainOutcome train_with(int ranks, const Keys& keys, const TrainOptions& options = {}) {
    set_log_level(LogLevel::Error);
    const RunConfig config = tiny_config(prefix_, keys);
    TrainOutcome outcome;
    run_thread_ranks(ranks, [&](int rank, const std::shared_ptr<Communicator>& world) {
      TrainOptions mine = options;
      mine.ranks = job_of(world);
      const TrainOutcome own = train(config, mine);
      if (rank == 0) outcome = own;
    });
    set_log_file("");
    return outcome;
  }
  // The same keys for one rank.
  static Keys alone(const Keys& keys) {
    Keys rest;
    for (const std::string& key : keys) {
      if (key.rfind("parallel.", 0) != 0) rest.push_back(key);
    }
    return rest;
  }

  TempFolder folder_;
  std::string prefix_;
};

TEST_F(RanksTogether, every_pair_of_features_trains_as_one_rank_does) {
  std::size_t pairs = 0;
  const std::vector<std::vector<std::size_t>> rows = covering_rows(prefix_, pairs);
  std::map<Keys, std::vector<double>> known;  // of one rank
  for (const std::vector<std::size_t>& row : rows) {
    const Keys keys = keys_of(row);
    std::string title;
    for (const std::string& key : keys) title += key + " ";
    const int ranks = ranks_of(features()[0].values[row[0]]);
    std::vector<double>& one = known[alone(keys)];
    if (one.empty()) one = train_with(1, alone(keys)).losses;
    const std::vector<double> many = train_with(ranks, keys).losses;
    ASSERT_EQ(many.size(), 5U) << title;
    EXPECT_NEAR(many[0], one[0], 1e-6 * one[0]) << title;
    EXPECT_NEAR(many[4], one[4], 1e-4 * one[4]) << title;
    if (::testing::Test::HasFailure()) break;
  }
  std::printf("    %zu pairs of %zu features in %zu runs\n", pairs, features().size(), rows.size());
  EXPECT_GT(pairs, 300U);
}

// Weights after five steps of plain SGD, element by element, beside how far they have moved.
TEST_F(RanksTogether, sgd_moves_every_weight_as_one_rank_does) {
  const Keys common = {"model.linear_num_key_heads=4", "training.micro_batch_size=1", "training.train_iters=5",      "optimizer.optimizer=sgd",
                       "optimizer.lr=0.05",            "optimizer.min_lr=0.05",        "optimizer.lr_warmup_iters=0", "optimizer.weight_decay=0",
                       "model.hidden_dropout=0",       "model.attention_dropout=0",    "checkpoint.save_interval=1",  "checkpoint.keep_last=0"};
  const auto with = [&](Keys keys, const std::string& run) {
    keys.insert(keys.end(), common.begin(), common.end());
    keys.push_back("checkpoint.save=" + (folder_ / run));
    return keys;
  };
  train_with(1, with({}, "one"));
  const CheckpointReader after(checkpoint_path(folder_ / "one", 5)), before(checkpoint_path(folder_ / "one", 1));
  const struct {
    const char* name;
    int ranks;
    Keys keys;
  } layouts[] = {{"tp2", 2, {"parallel.tensor_model_parallel_size=2"}},
                 {"cp2", 2, {"parallel.context_parallel_size=2"}},
                 {"dp2", 2, {}},
                 {"sharded", 2, {"optimizer.use_distributed_optimizer=true"}},
                 {"all", 8, {"parallel.tensor_model_parallel_size=2", "parallel.context_parallel_size=2", "parallel.sequence_parallel=true"}}};
  for (const auto& layout : layouts) {
    train_with(layout.ranks, with(layout.keys, layout.name));
    const CheckpointReader other(checkpoint_path(folder_ / layout.name, 5));
    double worst = 0;
    std::string where;
    for (const std::string& name : after.names()) {
      const HostView a = after.view(name), b = before.view(name), c = other.view(name);
      const auto* now = reinterpret_cast<const float*>(a.data);
      const auto* then = reinterpret_cast<const float*>(b.data);
      const auto* theirs = reinterpret_cast<const float*>(c.data);
      double difference = 0, moved = 0;
      for (std::size_t i = 0; i < a.bytes / sizeof(float); ++i) {
        difference += (double{now[i]} - theirs[i]) * (double{now[i]} - theirs[i]);
        moved += (double{now[i]} - then[i]) * (double{now[i]} - then[i]);
      }
      const double error = std::sqrt(difference / std::max(moved, 1e-30));
      if (error > worst) worst = error, where = name;
    }
    std::printf("    %-8s worst %.1e of the update (%s)\n", layout.name, worst, where.c_str());
    EXPECT_LE(worst, 1e-5) << layout.name << ": " << where;
  }
}

// Saved by four ranks, put together by `deltron checkpoint reshard`, and gone on from by four ranks again: the step that they would have made.
TEST_F(RanksTogether, resharded_there_and_back_is_the_same_next_step) {
  const auto with = [&](const std::string& run, Keys keys = {}) {
    keys.insert(keys.end(), {"model.linear_num_key_heads=4", "training.micro_batch_size=1", "training.train_iters=4", "parallel.tensor_model_parallel_size=2",
                             "optimizer.use_distributed_optimizer=true", "parallel.ddp_bucket_size=3000", "checkpoint.save=" + (folder_ / run)});
    return keys;
  };
  const TrainOutcome whole = train_with(4, with("whole"));
  train_with(4, with("pieces", {"training.exit_interval=3"}));
  const CheckpointReader pieces(checkpoint_path(folder_ / "pieces", 3));
  reshard_checkpoint(pieces.path(), folder_ / "flat", 1);
  const CheckpointReader flat(checkpoint_path(folder_ / "flat", 3));
  ASSERT_EQ(flat.names(), pieces.names());
  for (const std::string& name : flat.names()) {
    const HostView a = flat.view(name), b = pieces.view(name);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(a.data), a.bytes), std::string(reinterpret_cast<const char*>(b.data), b.bytes)) << name;
  }
  TrainOptions from_flat;
  from_flat.load = folder_ / "flat";
  EXPECT_EQ(train_with(4, with("again"), from_flat).losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
}

}  // namespace
}  // namespace deltron
