// What `deltron launch` was asked for, checked, and the environment that each rank of this node gets from it. Starts nothing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace deltron::tools {

struct LaunchOptions {
  std::string ranks_per_node;  // a number, or "gpu": as many as this node's visible GPUs
  std::int64_t nodes = 1, node_rank = 0;
  std::string master_address;  // of node 0; empty: the loopback address, one node only
  std::int64_t master_port = 0;  // 0: a free one, one node only
  std::string job_id;            // the same on every node; empty: derived
  std::vector<std::string> command;
};

using EnvironmentVariable = std::pair<std::string, std::string>;

struct LaunchPlan {
  int ranks_per_node = 1, nodes = 1, node_rank = 0;
  std::string master_address, job_id;
  int master_port = 0;

  int world_size() const { return ranks_per_node * nodes; }
  int rank(int local_rank) const { return node_rank * ranks_per_node + local_rank; }
};

// Throws ErrorCode::UsageError for what does not fit together, ErrorCode::DeviceUnavailable for "gpu" without one.
LaunchPlan make_launch_plan(const LaunchOptions& options);

// torchrun's variables and our own.
std::vector<EnvironmentVariable> rank_environment(const LaunchPlan& plan, int local_rank);

// This process's environment as "NAME=value", with `changes` in place of variables of the same names.
std::vector<std::string> environment_with(const std::vector<EnvironmentVariable>& changes);

}  // namespace deltron::tools
