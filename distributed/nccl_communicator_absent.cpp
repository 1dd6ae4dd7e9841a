// See nccl_communicator.h: builds without CUDA or without NCCL's header.
#include "distributed/nccl_communicator.h"
#include "src/base/error.h"

namespace deltron {

NcclInfo nccl_info() {
  NcclInfo info;
  info.problem = "this build has no NCCL back end";
  return info;
}

std::shared_ptr<Communicator> make_nccl_group(Context&, std::shared_ptr<RendezvousStore>, int, int, const NcclOptions&) {
  throw Error(ErrorCode::DeviceUnavailable, ErrorText{"several GPUs cannot be used", "", nccl_info().problem, "a build with CUDA that finds nccl.h",
                                                      "install libnccl-dev and configure again, or use Gloo"});
}

}  // namespace deltron
