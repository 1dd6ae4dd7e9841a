// Handle of an execution stream as kernels see it: a device, its native stream, and the CPU's worker pool.
// Plain data; usable in .cu files. On the CPU, kernels run at once on the calling thread and spread over `pool`.
#pragma once

#include "src/base/dtype.h"

namespace deltron {

class ThreadPool;
namespace kernels::cuda {
class FusedAttention;
class ProductLibrary;
}

struct StreamHandle {
  DeviceKind device = DeviceKind::Cpu;
  void* native = nullptr;                           // cudaStream_t on cuda
  ThreadPool* pool = nullptr;                       // never null
  kernels::cuda::ProductLibrary* products = nullptr;  // cuda: matrix products and their plans, one a context
  kernels::cuda::FusedAttention* attention = nullptr;  // cuda: cuDNN's attention and its plans, one a context; null where the build has none
};

}  // namespace deltron
