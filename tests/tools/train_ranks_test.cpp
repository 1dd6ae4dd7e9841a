// Several processes train under `deltron launch`: the bits do not depend on who starts them, a rank that dies or hangs ends all with its name,
// within seconds, and the newest checkpoint goes on from where it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <chrono>
#include <cstdio>

#include "src/base/file.h"
#include "src/config/schema.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/verify.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using namespace deltron::test;

struct Finished {
  int code = 0;
  double seconds = 0;
  std::string output;  // both streams
};

Finished run_shell(const std::string& command) {
  const auto start = std::chrono::steady_clock::now();
  Finished finished;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (const std::size_t count = fread(buffer, 1, sizeof(buffer), pipe)) finished.output.append(buffer, count);
  const int status = pclose(pipe);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  finished.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return finished;
}

class TrainUnderLaunch : public ::testing::Test {
 protected:
  TrainUnderLaunch() {
    const std::string prefix = prepare_text(folder_, "text", made_text(20, 300));
    write_file_atomically(folder_ / "tiny.yaml", to_yaml(tiny_config(prefix, {"training.train_iters=6", "training.micro_batch_size=1", "checkpoint.save=" + run(),
                                                                             "checkpoint.save_interval=2", "model.num_query_groups=2"})));
  }
  std::string run() const { return folder_ / "run"; }
  Finished launch(int ranks, const std::string& arguments) {
    return run_shell(std::string(DELTRON_BINARY_DIR) + "/deltron launch --nproc-per-node " + std::to_string(ranks) + " train -c " + (folder_ / "tiny.yaml") + " " + arguments);
  }
  Finished run_script(const std::string& text) {
    write_file_atomically(folder_ / "script.sh", text);
    return run_shell("bash " + (folder_ / "script.sh"));
  }
  std::int64_t newest() const {
    const auto found = newest_complete(list_checkpoints(run()));
    return found ? found->step : -1;
  }
  TempFolder folder_;
};

TEST_F(TrainUnderLaunch, four_ranks_train_evaluate_and_save) {
  const Finished done = launch(4, "parallel.tensor_model_parallel_size=2 training.eval_interval=6 optimizer.use_distributed_optimizer=true");
  EXPECT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("4 ranks (Deltron's own variables), gloo: tp 2 x cp 1 x dp 2"));
  EXPECT_THAT(done.output, HasSubstr("rank 3: tp 1 cp 0 dp 1"));
  EXPECT_THAT(done.output, HasSubstr("evaluation at step 6"));
  EXPECT_EQ(newest(), 6);
  EXPECT_EQ(metrics_lines(run(), "train").size(), 3U) << "one rank writes";
}

// What the other launchers put into the environment does, too.
TEST_F(TrainUnderLaunch, torchrun_and_slurm_by_their_variables) {
  const char* const environments[] = {
      "RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port",
      "SLURM_PROCID=$r SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_LOCALID=$r SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2 SLURM_JOB_ID=7 "
      "SLURM_STEP_NODELIST=localhost DELTRON_MASTER_PORT=$port"};
  for (const char* environment : environments) {
    remove_tree(run());
    const std::string command = std::string("port=$((20000 + $$ % 20000)); for r in 0 1; do ") + environment + " " + DELTRON_BINARY_DIR + "/deltron train -c " +
                                (folder_ / "tiny.yaml") + " parallel.context_parallel_size=2 & pids+=($!); done; wait ${pids[0]} && wait ${pids[1]}";
    const Finished done = run_script(command);
    EXPECT_EQ(done.code, 0) << done.output;
    EXPECT_EQ(newest(), 6) << environment;
  }
}

// Two machines as two network namespaces with a cable between them, a launcher on each.
TEST_F(TrainUnderLaunch, two_nodes_train_as_one) {
  const std::string launch = std::string(DELTRON_BINARY_DIR) + "/deltron launch --nproc-per-node 2 --nnodes 2 --master-addr 10.77.0.1 --master-port 29777 ";
  const std::string train = " train -c " + (folder_ / "tiny.yaml") + " parallel.tensor_model_parallel_size=2";
  const Finished done = run_script("a=deltron_a_$$ b=deltron_b_$$\n"
                                   "trap 'ip netns del $a; ip netns del $b' EXIT\n"
                                   "ip netns add $a && ip netns add $b && ip link add da netns $a type veth peer name db netns $b || { echo no namespaces; exit 77; }\n"
                                   "ip -n $a addr add 10.77.0.1/24 dev da && ip -n $b addr add 10.77.0.2/24 dev db || exit 77\n"
                                   "for n in $a $b; do ip -n $n link set lo up; done; ip -n $a link set da up; ip -n $b link set db up\n"
                                   "ip netns exec $b " + launch + "--node-rank 1" + train + " & second=$!\n"
                                   "ip netns exec $a " + launch + "--node-rank 0" + train + "; first=$?\n"
                                   "wait $second; echo codes $first $?\n");
  if (done.code == 77) GTEST_SKIP() << "no network namespaces here (root and iproute2 are needed): " << done.output;
  EXPECT_THAT(done.output, HasSubstr("codes 0 0"));
  EXPECT_THAT(done.output, HasSubstr("4 ranks (Deltron's own variables), gloo: tp 2 x cp 1 x dp 2"));
  EXPECT_EQ(newest(), 6);
}

TEST_F(TrainUnderLaunch, a_killed_rank_ends_all_and_the_run_goes_on_from_its_checkpoint) {
  const Finished whole = launch(2, "parallel.tensor_model_parallel_size=2 checkpoint.save=" + (folder_ / "whole"));
  ASSERT_EQ(whole.code, 0) << whole.output;
  for (const int rank : {0, 1}) {
    for (const char* place : {"forward", "backward", "gradients over ranks", "update", "save"}) {
      remove_tree(run());
      const int step = std::string(place) == "save" ? 4 : 3;
      const std::string where = "step " + std::to_string(step) + ", " + place;
      const Finished killed = launch(2, "parallel.tensor_model_parallel_size=2 --inject-fault 'rank=" + std::to_string(rank) + ";at=" + where + ";how=kill'");
      EXPECT_EQ(killed.code, 137) << killed.output;
      EXPECT_LT(killed.seconds, 15) << where;
      EXPECT_THAT(killed.output, HasSubstr("rank " + std::to_string(rank) + " of 2 failed first")) << where;
      EXPECT_THAT(killed.output, HasSubstr("rank " + std::to_string(rank) + " is gone")) << where;
      EXPECT_EQ(newest(), 2) << where;
      EXPECT_TRUE(verify_checkpoint(checkpoint_path(run(), 2)).faults.empty()) << where;
      if (std::string(place) != "save") continue;
      const Finished again = launch(2, "parallel.tensor_model_parallel_size=2");
      EXPECT_EQ(again.code, 0) << again.output;
      EXPECT_EQ(tensor_hashes(run(), 6), tensor_hashes(folder_ / "whole", 6)) << "resumed to the bits of the run that nobody killed";
    }
  }
}

// One of two ranks meets a full disk (here: a limit of its files' sizes) while it writes its part of a checkpoint.
TEST_F(TrainUnderLaunch, a_full_disk_on_one_rank_ends_the_save_on_all_and_leaves_the_checkpoint_before_it) {
  ASSERT_EQ(launch(2, "training.exit_interval=2 parallel.tensor_model_parallel_size=2").code, 75);
  ASSERT_EQ(newest(), 2);
  const std::string rank = std::string(DELTRON_BINARY_DIR) + "/deltron train -c " + (folder_ / "tiny.yaml") + " parallel.tensor_model_parallel_size=2";
  const Finished full = run_script("export DELTRON_WORLD_SIZE=2 DELTRON_LOCAL_WORLD_SIZE=2 DELTRON_MASTER_PORT=$((20000 + $$ % 20000))\n"
                                   "DELTRON_RANK=0 DELTRON_LOCAL_RANK=0 " + rank + " & zero=$!\n"
                                   "(ulimit -f 16; DELTRON_RANK=1 DELTRON_LOCAL_RANK=1 exec " + rank + ") & one=$!\n"
                                   "wait $zero; a=$?; wait $one; b=$?; echo codes $a $b\n");
  EXPECT_THAT(full.output, HasSubstr("codes 8 8")) << full.output;
  EXPECT_THAT(full.output, HasSubstr("rank 1 could not save"));
  EXPECT_EQ(newest(), 2);
  EXPECT_TRUE(verify_checkpoint(checkpoint_path(run(), 2)).faults.empty());
}

TEST_F(TrainUnderLaunch, a_rank_that_hangs_is_named_at_the_deadline) {
  const Finished hung = launch(3, "parallel.distributed_timeout_minutes=0.04 training.global_batch_size=3 --inject-fault 'rank=2;at=step 3, backward;how=sleep'");
  EXPECT_EQ(hung.code, 7) << hung.output;
  EXPECT_LT(hung.seconds, 30);
  EXPECT_THAT(hung.output, HasSubstr("of group dp-cp has waited for"));
  EXPECT_THAT(hung.output, HasSubstr("elsewhere: rank 2 (step 3, backward)"));
  EXPECT_EQ(newest(), 2);
}

TEST_F(TrainUnderLaunch, an_error_of_one_rank_is_told_by_all) {
  const Finished failed = launch(2, "--inject-nan step=3,param=embedding.word_embeddings.weight,rank=1");
  EXPECT_EQ(failed.code, 6) << failed.output;
  EXPECT_THAT(failed.output, HasSubstr("E600 step 3, rank 1, embedding.word_embeddings.weight"));
  EXPECT_EQ(newest(), 2);
}

TEST_F(TrainUnderLaunch, one_sigusr1_saves_and_stops_all) {
  const std::string command = std::string(DELTRON_BINARY_DIR) + "/deltron launch --nproc-per-node 2 train -c " + (folder_ / "tiny.yaml") +
                              " training.train_iters=100000 checkpoint.save_interval=0 training.exit_interval=0 & pid=$!; for i in $(seq 200); do sleep 0.05; "
                              "grep -q 'step 5/' " + (run() + "/log.txt") + " 2>/dev/null && break; done; kill -USR1 $pid; wait $pid";
  const Finished stopped = run_script(command);
  EXPECT_EQ(stopped.code, 75) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr("stopped by SIGUSR1 on rank"));
  EXPECT_GE(newest(), 5);
}

}  // namespace
}  // namespace deltron
