// See nccl_library.h.
#include "distributed/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "distributed/nccl_communicator.h"
#include "src/base/error.h"

namespace deltron {
namespace {

// The library stays open: its threads may outlive the last communicator by a moment.
void* open_library(std::string& path) {
  const std::string name = "libnccl.so.2";
  std::vector<std::string> places;
  if (const char* given = std::getenv("DELTRON_NCCL")) places.push_back(given);
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"}) places.push_back(folder + name);
  for (const std::string& place : places) {
    path = place;
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  path.clear();
  return nullptr;
}

// Fills `f`; says what is wrong, or nothing.
std::string find_functions(NcclFunctions& f) {
  void* library = open_library(f.path);
  if (library == nullptr) return "libnccl.so.2 was found neither by the loader nor in /usr/local/cuda/lib64";
  std::string problem;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && problem.empty()) problem = f.path + " has no " + name;
  };
  decltype(&ncclGetVersion) version = nullptr;
  find(version, "ncclGetVersion");
  find(f.get_unique_id, "ncclGetUniqueId");
  find(f.init_rank, "ncclCommInitRankConfig");
  find(f.split, "ncclCommSplit");
  find(f.count, "ncclCommCount");
  find(f.user_rank, "ncclCommUserRank");
  find(f.finalize, "ncclCommFinalize");
  find(f.destroy, "ncclCommDestroy");
  find(f.abort, "ncclCommAbort");
  find(f.async_error, "ncclCommGetAsyncError");
  find(f.error_string, "ncclGetErrorString");
  find(f.last_error, "ncclGetLastError");
  find(f.all_reduce, "ncclAllReduce");
  find(f.all_gather, "ncclAllGather");
  find(f.reduce_scatter, "ncclReduceScatter");
  find(f.broadcast, "ncclBroadcast");
  find(f.send, "ncclSend");
  find(f.receive, "ncclRecv");
  find(f.group_start, "ncclGroupStart");
  find(f.group_end, "ncclGroupEnd");
  if (problem.empty()) version(&f.version);
  return problem;
}

}  // namespace

std::shared_ptr<const NcclFunctions> open_nccl() {
  const auto f = std::make_shared<NcclFunctions>();
  const std::string problem = find_functions(*f);
  if (!problem.empty()) {
    throw Error(ErrorCode::DeviceUnavailable, ErrorText{"NCCL is missing", "", problem, "several GPUs need NCCL 2.18 or newer",
                                                        "install libnccl2, or name the file in DELTRON_NCCL"});
  }
  return f;
}

NcclInfo nccl_info() {
  NcclFunctions f;
  NcclInfo info;
  info.built = true;
  info.problem = find_functions(f);
  info.found = info.problem.empty();
  info.path = f.path;
  if (info.found) info.version = std::to_string(f.version / 10000) + "." + std::to_string(f.version / 100 % 100) + "." + std::to_string(f.version % 100);
  return info;
}

}  // namespace deltron
