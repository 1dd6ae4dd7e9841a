// Launchers by what they put into the environment, with their traps, and what makes no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distributed/rank_environment.h"
#include "src/base/error.h"

namespace deltron {
namespace {

struct Row {
  const char* name;
  EnvironmentVariables variables;
  int rank, world, local_rank, local_size;
  const char *address, *source;
  int port;
};

const Row kRows[] = {
    {"alone", {{"RANK", "7"}}, 0, 1, 0, 1, "127.0.0.1", "alone", 0},
    {"a batch script without srun", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}}, 0, 1, 0, 1, "127.0.0.1", "alone", 0},
    {"own", {{"DELTRON_RANK", "1"}, {"DELTRON_WORLD_SIZE", "2"}, {"DELTRON_MASTER_PORT", "5000"}, {"DELTRON_MASTER_ADDR", "head"}, {"OMPI_COMM_WORLD_RANK", "0"},
             {"OMPI_COMM_WORLD_SIZE", "1"}},
     1, 2, 1, 2, "head", "Deltron's own variables", 5000},
    {"torchrun, whose agent has the port",
     {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "none"}},
     3, 4, 1, 2, "10.0.0.1", "torchrun", 29501},
    {"torchrun, port free", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}}, 0, 2, 0, 2, "a", "torchrun", 29500},
    {"mpirun on one machine",
     {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"OMPI_MCA_orte_hnp_uri", "2818834432.0;tcp://10.1.2.3,192.168.0.7:34567;tcp6://[fe80::1]:34567"}},
     1, 2, 1, 2, "127.0.0.1", "Open MPI", 61440 + static_cast<int>(2818834432LL / 4096 % 4096)},
    {"mpirun on two machines",
     {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"OMPI_MCA_orte_hnp_uri", "40960.0;tcp://10.1.2.3,192.168.0.7:34567"}},
     2, 4, 0, 2, "10.1.2.3", "Open MPI", 61440 + 10},
    {"MPICH with a port", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"DELTRON_MASTER_PORT", "6000"}}, 1, 2, 1, 2, "127.0.0.1", "MPICH", 6000},
    {"srun",
     {{"SLURM_PROCID", "5"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "11"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"}, {"SLURM_JOB_ID", "8195"},
      {"SLURM_STEP_NODELIST", "gpu[01-02,07]"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}},
     5, 11, 1, 4, "gpu01", "Slurm", 61440 + 3},
    {"srun, third machine",
     {{"SLURM_PROCID", "8"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "11"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "2"}, {"SLURM_JOB_ID", "1"},
      {"SLURM_STEP_NODELIST", "a,b,c"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}},
     8, 11, 0, 3, "a", "Slurm", 61441},
};

TEST(RankEnvironment, launchers) {
  for (const Row& row : kRows) {
    const RankEnvironment place = read_rank_environment(row.variables);
    EXPECT_EQ(place.rank, row.rank) << row.name;
    EXPECT_EQ(place.world_size, row.world) << row.name;
    EXPECT_EQ(place.local_rank, row.local_rank) << row.name;
    EXPECT_EQ(place.local_size, row.local_size) << row.name;
    EXPECT_EQ(place.address, row.address) << row.name;
    EXPECT_EQ(place.source, row.source) << row.name;
    EXPECT_EQ(place.port, row.port) << row.name;
  }
}

TEST(RankEnvironment, two_jobs_of_one_launcher_have_different_names) {
  EnvironmentVariables first = kRows[5].variables, second = first;
  second["OMPI_MCA_orte_hnp_uri"] = "2818838528.0;tcp://10.1.2.3:34567";
  EXPECT_NE(read_rank_environment(first).job_id, read_rank_environment(second).job_id);
  EXPECT_NE(read_rank_environment(first).port, read_rank_environment(second).port);
}

TEST(RankEnvironment, what_makes_no_sense_is_refused) {
  const struct {
    EnvironmentVariables variables;
    const char* says;
  } cases[] = {
      {{{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "1"}}, "RANK is not below WORLD_SIZE (4 of 4)"},
      {{{"DELTRON_RANK", "0"}}, "DELTRON_RANK is set and DELTRON_WORLD_SIZE is not"},
      {{{"DELTRON_WORLD_SIZE", "2"}}, "DELTRON_WORLD_SIZE is set and DELTRON_RANK is not"},
      {{{"RANK", "one"}, {"WORLD_SIZE", "4"}}, "RANK is no whole number"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "4"}}, "RANK is no whole number"},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "where do the ranks meet?"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}, "where do the ranks meet?"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       "two launchers contradict each other"},
  };
  for (const auto& one : cases) {
    try {
      read_rank_environment(one.variables);
      ADD_FAILURE() << one.says;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::RankEnvironmentInvalid);
      EXPECT_EQ(error.exit_code(), ExitCode::Usage);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(one.says));
    }
  }
}

TEST(RankEnvironment, first_machine_of_a_slurm_list) {
  EXPECT_EQ(first_slurm_host("gpu[01-03,07]"), "gpu01");
  EXPECT_EQ(first_slurm_host("gpu[3,7]"), "gpu3");
  EXPECT_EQ(first_slurm_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_slurm_host("alone"), "alone");
}

}  // namespace
}  // namespace deltron
