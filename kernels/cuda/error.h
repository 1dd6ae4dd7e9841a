// CUDA statuses become errors of ours. Host code only; plain integers, so that files without CUDA headers may include it.
#pragma once

namespace deltron::kernels::cuda {

// `status` is a cudaError_t; anything but success is thrown as ErrorCode::DeviceFailed (or DeviceUnavailable where the build has no
// code for this GPU), with `what` first.
void check_status(int status, const char* what);

// The launch that was just made was accepted. Faults inside the kernel show at the next synchronisation.
void check_launch(const char* what);

}  // namespace deltron::kernels::cuda
