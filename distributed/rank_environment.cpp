// See rank_environment.h.
#include "distributed/rank_environment.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <vector>

#include "src/base/error.h"

namespace deltron {
namespace {

constexpr int kFirstPort = 61440, kPorts = 4096;  // what ports made from job numbers lie in

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& values, const std::string& rule, const std::string& fix) {
  throw Error(ErrorCode::RankEnvironmentInvalid, ErrorText{what, where, values, rule, fix});
}

class Variables {
 public:
  explicit Variables(const EnvironmentVariables& all) : all_(all) {}
  bool has(const std::string& name) const { return all_.count(name) != 0 && !all_.at(name).empty(); }
  std::string text(const std::string& name) const { return has(name) ? all_.at(name) : ""; }
  std::int64_t number(const std::string& name) const {
    const std::string value = text(name);
    std::int64_t number = 0;
    const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (fault != std::errc() || end != value.data() + value.size() || number < 0) {
      refuse(name + " is no whole number from 0", "environment", "'" + value + "'", "launchers set it", "unset it, or start through a launcher");
    }
    return number;
  }
  int small(const std::string& name, int otherwise) const {
    if (!has(name)) return otherwise;
    const std::int64_t value = number(name);
    if (value > 10000000) refuse(name + " is out of range", "environment", text(name), "", "unset it, or start through a launcher");
    return static_cast<int>(value);
  }

 private:
  const EnvironmentVariables& all_;
};

struct Names {
  const char *rank, *world, *local_rank, *local_size;
};

RankEnvironment with_ranks(const Variables& v, const Names& names, const char* source) {
  if (!v.has(names.world)) refuse(std::string(names.rank) + " is set and " + names.world + " is not", "environment", v.text(names.rank),
                                  "a launcher sets both", "unset " + std::string(names.rank) + ", or set both");
  RankEnvironment place;
  place.source = source;
  place.rank = v.small(names.rank, 0);
  place.world_size = v.small(names.world, 1);
  place.local_rank = v.small(names.local_rank, place.rank);
  place.local_size = v.small(names.local_size, place.world_size);
  if (place.rank >= place.world_size) {
    refuse(std::string(names.rank) + " is not below " + names.world, "environment", v.text(names.rank) + " of " + v.text(names.world),
           "ranks count from 0", "start through one launcher alone");
  }
  return place;
}

int port_from_job(std::int64_t job) { return kFirstPort + static_cast<int>(job % kPorts); }

// Where to meet, said by the user or by torchrun. torchrun's own port is taken by its agent.
void meet_at_master(const Variables& v, RankEnvironment& place) {
  if (v.has("MASTER_ADDR")) place.address = v.text("MASTER_ADDR");
  if (v.has("MASTER_PORT")) {
    place.port = v.small("MASTER_PORT", 0);
    const bool taken = v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (taken) place.port = place.port < 65535 ? place.port + 1 : 1024;
  }
}

void meet_as_told(const Variables& v, RankEnvironment& place) {
  if (v.has("DELTRON_MASTER_ADDR")) place.address = v.text("DELTRON_MASTER_ADDR");
  if (v.has("DELTRON_MASTER_PORT")) place.port = v.small("DELTRON_MASTER_PORT", 0);
  if (v.has("DELTRON_JOB_ID")) place.job_id = v.text("DELTRON_JOB_ID");
  if (place.world_size > 1 && (place.port < 1 || place.port > 65535)) {
    refuse("where do the ranks meet?", "environment", place.source + ", port " + std::to_string(place.port),
           "rank 0 listens on a port that all ranks know", "set DELTRON_MASTER_ADDR (rank 0's machine) and DELTRON_MASTER_PORT on all ranks");
  }
}

// "4026531840.0;tcp://10.0.0.1,192.168.0.1:41234;tcp6://..." -> job number and first address.
void meet_as_open_mpi(const Variables& v, RankEnvironment& place) {
  const std::string uri = v.text("OMPI_MCA_orte_hnp_uri");
  const std::size_t dot = uri.find('.'), tcp = uri.find("tcp://");
  std::int64_t job = 0;
  if (dot != std::string::npos && std::from_chars(uri.data(), uri.data() + dot, job).ec == std::errc()) {
    place.job_id = "ompi-" + std::to_string(job);
    place.port = port_from_job(job / kPorts);  // the number is a multiple of 4096
  }
  if (tcp == std::string::npos) return;
  const std::size_t begin = tcp + 6, end = uri.find_first_of(",:;", begin);
  // On one machine its own loopback is surest.
  if (place.local_size < place.world_size) place.address = uri.substr(begin, end - begin);
}

void meet_as_slurm(const Variables& v, RankEnvironment& place) {
  const std::int64_t job = v.has("SLURM_JOB_ID") ? v.number("SLURM_JOB_ID") : 0;
  place.job_id = "slurm-" + v.text("SLURM_JOB_ID") + "." + v.text("SLURM_STEP_ID");
  place.port = port_from_job(job);
  const std::string list = v.has("SLURM_STEP_NODELIST") ? v.text("SLURM_STEP_NODELIST") : v.text("SLURM_JOB_NODELIST");
  if (!list.empty()) place.address = first_slurm_host(list);
}

// "4(x2),3" -> 4, the tasks of the first machines; the count of this one is told by its place in the list.
int slurm_local_size(const Variables& v, int world) {
  const std::string list = v.text("SLURM_STEP_TASKS_PER_NODE");
  const int node = v.small("SLURM_NODEID", 0);
  int at = 0;
  for (std::size_t i = 0; i < list.size();) {
    std::size_t end = list.find(',', i);
    if (end == std::string::npos) end = list.size();
    const std::string part = list.substr(i, end - i);
    const std::size_t times = part.find("(x");
    const int tasks = std::atoi(part.c_str()), repeat = times == std::string::npos ? 1 : std::atoi(part.c_str() + times + 2);
    at += repeat;
    if (node < at) return tasks;
    i = end + 1;
  }
  return world;
}

void check_agreement(const Variables& v, const RankEnvironment& place) {
  // Two launchers that contradict each other: nobody can tell which is meant.
  const std::vector<std::pair<const char*, const char*>> others = {{"RANK", "WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}};
  for (const auto& [rank, world] : others) {
    if (!v.has(rank) || !v.has(world) || place.source == "Deltron's own variables") continue;
    if (v.number(rank) == place.rank && v.number(world) == place.world_size) continue;
    refuse("two launchers contradict each other", "environment",
           place.source + ": rank " + std::to_string(place.rank) + " of " + std::to_string(place.world_size) + "; " + rank + "=" + v.text(rank) + ", " + world +
               "=" + v.text(world),
           "one launcher starts a job", "unset the variables of the other, or set DELTRON_RANK and DELTRON_WORLD_SIZE");
  }
}

}  // namespace

std::string first_slurm_host(const std::string& list) {
  const std::size_t stop = list.find_first_of(",[");
  if (stop == std::string::npos || list[stop] == ',') return list.substr(0, stop);
  const std::size_t end = list.find_first_of(",-]", stop + 1);
  return list.substr(0, stop) + list.substr(stop + 1, end - stop - 1);
}

RankEnvironment read_rank_environment(const EnvironmentVariables& variables) {
  const Variables v(variables);
  RankEnvironment place;
  if (v.has("DELTRON_RANK") || v.has("DELTRON_WORLD_SIZE")) {
    if (!v.has("DELTRON_RANK")) refuse("DELTRON_WORLD_SIZE is set and DELTRON_RANK is not", "environment", v.text("DELTRON_WORLD_SIZE"), "a rank knows both", "set both or none");
    place = with_ranks(v, {"DELTRON_RANK", "DELTRON_WORLD_SIZE", "DELTRON_LOCAL_RANK", "DELTRON_LOCAL_WORLD_SIZE"}, "Deltron's own variables");
    meet_at_master(v, place);
  } else if (v.has("RANK") && v.has("WORLD_SIZE")) {  // RANK alone is a word that other programs use
    place = with_ranks(v, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, "torchrun");
    meet_at_master(v, place);
    if (v.has("TORCHELASTIC_RUN_ID")) place.job_id = "torchrun-" + v.text("TORCHELASTIC_RUN_ID") + "-" + v.text("TORCHELASTIC_RESTART_COUNT");
  } else if (v.has("OMPI_COMM_WORLD_RANK")) {
    place = with_ranks(v, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}, "Open MPI");
    meet_as_open_mpi(v, place);
    meet_at_master(v, place);
  } else if (v.has("PMI_RANK")) {
    place = with_ranks(v, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, "MPICH");
    meet_at_master(v, place);
  } else if (v.has("PMIX_RANK") && v.has("DELTRON_JOB_WORLD_SIZE")) {
    place = with_ranks(v, {"PMIX_RANK", "DELTRON_JOB_WORLD_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"}, "PMIx");
    meet_at_master(v, place);
  } else if (v.has("SLURM_PROCID") && v.has("SLURM_STEP_ID")) {
    // A batch script without srun has SLURM_PROCID=0 and the job's SLURM_NTASKS, but no step: there is one process.
    const char* world = v.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    place = with_ranks(v, {"SLURM_PROCID", world, "SLURM_LOCALID", ""}, "Slurm");
    place.local_size = slurm_local_size(v, place.world_size);
    meet_as_slurm(v, place);
    meet_at_master(v, place);
  } else {
    return place;
  }
  check_agreement(v, place);
  meet_as_told(v, place);
  return place;
}

EnvironmentVariables process_environment() {
  EnvironmentVariables variables;
  for (const char* name :
       {"DELTRON_RANK", "DELTRON_WORLD_SIZE", "DELTRON_LOCAL_RANK", "DELTRON_LOCAL_WORLD_SIZE", "DELTRON_MASTER_ADDR", "DELTRON_MASTER_PORT", "DELTRON_JOB_ID",
        "DELTRON_JOB_WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_hnp_uri", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMIX_RANK", "PMIX_LOCAL_RANK",
        "PMIX_LOCAL_SIZE", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID",
        "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}) {
    if (const char* value = std::getenv(name)) variables[name] = value;
  }
  return variables;
}

}  // namespace deltron
