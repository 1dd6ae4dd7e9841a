// Which rank of which job this process is, from what its launcher has put into the environment: our own variables, torchrun, Open MPI, MPICH's
// Hydra, Slurm, or a process alone. A pure function of the variables, so that every launcher can be tried without it.
#pragma once

#include <map>
#include <string>

namespace deltron {

using EnvironmentVariables = std::map<std::string, std::string>;

struct RankEnvironment {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine
  std::string job_id = "0";
  std::string address = "127.0.0.1";   // where rank 0 listens
  int port = 0;                        // 0: no meeting, one rank
  std::string source = "alone";        // "torchrun"
};

// Throws Error(RankEnvironmentInvalid) where variables are missing, unreadable or contradict each other.
RankEnvironment read_rank_environment(const EnvironmentVariables& variables);
EnvironmentVariables process_environment();  // of this process

// The first machine of a Slurm node list: "gpu[01-03,07]" -> "gpu01".
std::string first_slurm_host(const std::string& list);

}  // namespace deltron
