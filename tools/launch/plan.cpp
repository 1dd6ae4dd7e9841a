// See plan.h.
#include "tools/launch/plan.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/tensor/cuda_device.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

constexpr int kMostRanksPerNode = 1024, kMostNodes = 65536;  // far above any machine: a slip of the finger must not fork for minutes

int visible_gpus() {
  const CudaStatus cuda = cuda_status();
  if (!cuda.usable || cuda.devices.empty()) {
    throw Error(ErrorCode::DeviceUnavailable, ErrorText{"no GPU to start ranks for", "--nproc-per-node gpu", cuda.problem, "",
                                                        "give a number of ranks; 'deltron doctor' says what is missing"});
  }
  return static_cast<int>(cuda.devices.size());
}

int ranks_of(const std::string& text) {
  if (text == "gpu") return visible_gpus();
  int count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, count);
  if (fault != std::errc() || stop != end || count < 1 || count > kMostRanksPerNode) {
    usage_error("launch", "--nproc-per-node is '" + text + "'", "a number from 1 to " + std::to_string(kMostRanksPerNode) + ", or gpu");
  }
  return count;
}

// Nobody else gets the port before rank 0 opens it unless it asks for this very number, or the kernel's round through all ephemeral ports
// comes back to it.
int free_loopback_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool found = descriptor >= 0 && bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const std::string problem = found ? "" : std::strerror(errno);
  if (descriptor >= 0) close(descriptor);
  if (!found) {
    throw Error(ErrorCode::ResourceUnavailable, ErrorText{"no free loopback port", "127.0.0.1", problem, "", "name one with --master-port"});
  }
  return ntohs(address.sin_port);
}

}  // namespace

LaunchPlan make_launch_plan(const LaunchOptions& options) {
  if (options.nodes < 1 || options.nodes > kMostNodes) {
    usage_error("launch", "--nnodes is " + std::to_string(options.nodes), "a number from 1 to " + std::to_string(kMostNodes));
  }
  if (options.node_rank < 0 || options.node_rank >= options.nodes) {
    usage_error("launch", "--node-rank is " + std::to_string(options.node_rank) + " of " + std::to_string(options.nodes) + " nodes",
                "node ranks count from 0 to --nnodes - 1");
  }
  if (options.nodes > 1 && options.master_address.empty()) {
    usage_error("launch", "--master-addr is missing", "several nodes need the address of node 0, the same on all of them");
  }
  if (options.nodes > 1 && options.master_port == 0) {
    usage_error("launch", "--master-port is missing", "several nodes need a free port of node 0, the same on all of them");
  }
  if (options.master_port < 0 || options.master_port > 65535) {
    usage_error("launch", "--master-port is " + std::to_string(options.master_port), "a number from 1 to 65535");
  }
  LaunchPlan plan;
  plan.ranks_per_node = ranks_of(options.ranks_per_node);
  plan.nodes = static_cast<int>(options.nodes);
  plan.node_rank = static_cast<int>(options.node_rank);
  plan.master_address = options.master_address.empty() ? "127.0.0.1" : options.master_address;
  plan.master_port = options.master_port != 0 ? static_cast<int>(options.master_port) : free_loopback_port();
  plan.job_id = options.job_id;
  if (plan.job_id.empty() && plan.nodes > 1) plan.job_id = plan.master_address + ":" + std::to_string(plan.master_port);
  if (plan.job_id.empty()) {  // no other launch may have it, on this machine or later
    plan.job_id = "local-" + std::to_string(getpid()) + "-" + std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
  }
  return plan;
}

std::vector<EnvironmentVariable> rank_environment(const LaunchPlan& plan, int local_rank) {
  const std::string rank = std::to_string(plan.rank(local_rank)), world = std::to_string(plan.world_size());
  const std::string local = std::to_string(local_rank), local_world = std::to_string(plan.ranks_per_node);
  const std::string port = std::to_string(plan.master_port);
  return {
      {"RANK", rank},
      {"WORLD_SIZE", world},
      {"LOCAL_RANK", local},
      {"LOCAL_WORLD_SIZE", local_world},
      {"GROUP_RANK", std::to_string(plan.node_rank)},
      {"MASTER_ADDR", plan.master_address},
      {"MASTER_PORT", port},
      {"DELTRON_RANK", rank},
      {"DELTRON_WORLD_SIZE", world},
      {"DELTRON_LOCAL_RANK", local},
      {"DELTRON_LOCAL_WORLD_SIZE", local_world},
      {"DELTRON_MASTER_ADDR", plan.master_address},
      {"DELTRON_MASTER_PORT", port},
      {"DELTRON_JOB_ID", plan.job_id},
  };
}

std::vector<std::string> environment_with(const std::vector<EnvironmentVariable>& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const EnvironmentVariable& change) { return change.first == name; });
    if (!changed) all.push_back(text);
  }
  for (const EnvironmentVariable& change : changes) all.push_back(change.first + "=" + change.second);
  return all;
}

}  // namespace deltron::tools
