// What kernel tests built with DELTRON_TEST_ON_CUDA=1 need where fibers on the CPU run the kernels: the test's memory is the device's.
#include "kernels/cuda/error.h"
#include "src/base/check.h"
#include "tests/support/under_test.h"

namespace deltron::test {

StreamHandle device_stream(const StreamHandle& stream) { return {DeviceKind::Cuda, nullptr, stream.pool, nullptr}; }
void finish_device() {}

}  // namespace deltron::test

namespace deltron::kernels::cuda {

void check_status(int status, const char* what) { DELTRON_CHECK_EQ(status, 0, what); }
void check_launch(const char*) {}

}  // namespace deltron::kernels::cuda
