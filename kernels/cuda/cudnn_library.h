// cuDNN opened at run time. cudnn_library.cpp also defines the few functions that cuDNN's front end calls, each passing on to the
// opened library, so that nothing is linked against it. Host code only.
#pragma once

#include <cstdint>
#include <string>

namespace deltron::kernels::cuda {

struct CudnnLibrary {
  void* handle = nullptr;  // null: not found
  std::string path, problem;
  std::string version;      // "9.19.0"
  std::int64_t number = 0;  // 91900
};
// Opened once in a process, on the first call. Searched: DELTRON_CUDNN (a file or a folder), the loader's own search, the CUDA
// toolkit, and the folders of Python's nvidia-cudnn packages.
const CudnnLibrary& cudnn_library();

}  // namespace deltron::kernels::cuda
