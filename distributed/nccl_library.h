// NCCL's functions, found in the library at run time, so that the program starts where there is none. For the .cpp files of the NCCL back end only.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

namespace deltron {

struct NcclFunctions {
  std::string path;  // of the library
  int version = 0;   // as NCCL counts: 22809 is 2.28.9
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommSplit) split = nullptr;
  decltype(&ncclCommCount) count = nullptr;
  decltype(&ncclCommUserRank) user_rank = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
};

// Looks in DELTRON_NCCL (a file), then as the loader does, then in the toolkit. Throws Error(DeviceUnavailable) where there is none or it is too old.
std::shared_ptr<const NcclFunctions> open_nccl();

}  // namespace deltron
