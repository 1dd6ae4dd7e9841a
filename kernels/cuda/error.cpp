// See error.h.
#include "kernels/cuda/error.h"

#include <cuda_runtime_api.h>

#include <string>

#include "src/base/build_options.h"
#include "src/base/error.h"

namespace deltron::kernels::cuda {

void check_status(int status, const char* what) {
  const auto error = static_cast<cudaError_t>(status);
  if (error == cudaSuccess) return;
  const std::string name = cudaGetErrorName(error);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    throw Error(ErrorCode::DeviceUnavailable, ErrorText{"this build has no code for this GPU", what,
                                                        "built for " DELTRON_CUDA_ARCHITECTURES + std::string(" (") + name + ")",
                                                        "the build's list of GPUs holds the one that is used",
                                                        "build with -DCMAKE_CUDA_ARCHITECTURES=<compute capability>, e.g. 89"});
  }
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    throw Error(ErrorCode::DeviceUnavailable,
                ErrorText{"device cuda cannot be used", what, cudaGetErrorString(error), "a GPU and its driver",
                          "run 'deltron doctor', or set training.device: cpu"});
  }
  throw Error(ErrorCode::DeviceFailed, ErrorText{cudaGetErrorString(error), what, name, "", "run 'deltron doctor'"});
}

void check_launch(const char* what) { check_status(static_cast<int>(cudaGetLastError()), what); }

}  // namespace deltron::kernels::cuda
