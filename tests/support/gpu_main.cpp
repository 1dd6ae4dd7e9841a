// main() of GPU test binaries. Without a usable GPU every test counts as skipped, with the reason; with DELTRON_REQUIRE_GPU=1 that
// is a failure. Listing the tests needs no GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "src/tensor/cuda_device.h"

#if DELTRON_TEST_ON_CUDA
#include <cuda_runtime_api.h>

#include "kernels/cuda/error.h"
#include "kernels/cuda/products.h"
#include "tests/support/pinned_heap.h"
#include "tests/support/under_test.h"

namespace deltron::test {

StreamHandle device_stream(const StreamHandle& stream) {
  static const std::shared_ptr<kernels::cuda::ProductLibrary> products = kernels::cuda::make_products();
  return {DeviceKind::Cuda, nullptr, stream.pool, products.get()};
}
void finish_device() {
  kernels::cuda::check_status(static_cast<int>(cudaDeviceSynchronize()), "kernel under test");
  if (written_guards() > 0) throw std::runtime_error("the kernel under test wrote outside of a buffer");
}

}  // namespace deltron::test
#endif

int main(int argc, char** argv) {
  bool lists = false;
  for (int i = 1; i < argc; ++i) lists = lists || std::strcmp(argv[i], "--gtest_list_tests") == 0;
  if (!lists) {
    const deltron::CudaStatus status = deltron::cuda_status();
    if (!status.usable) {
      const char* required = std::getenv("DELTRON_REQUIRE_GPU");
      const bool fails = required != nullptr && std::strcmp(required, "1") == 0;
      std::printf(fails ? "[  FAILED  ] DELTRON_REQUIRE_GPU=1: %s\n" : "[  SKIPPED ] no GPU: %s\n", status.problem.c_str());
      return fails ? 1 : 0;
    }
#if DELTRON_TEST_ON_CUDA
    if (!deltron::test::open_pinned_heap()) {
      std::printf("[  FAILED  ] no pinned memory for the tests' buffers\n");
      return 1;
    }
#endif
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
