// The one place that picks the back end of a kernel call. On meta nothing runs, but workspaces are asked for and counted.
#pragma once

#include "src/base/build_options.h"
#include "src/tensor/context.h"
#include "src/tensor/tensor.h"

// A build without CUDA has no context on cuda (its construction is refused), so that the call can be left out.
#if DELTRON_HAVE_CUDA
#define DELTRON_CUDA_LAUNCH(ctx, kernel, args) ::deltron::kernels::cuda::kernel((args), (ctx).stream())
#define DELTRON_WORKSPACE_BYTES(ctx, kernel, args)                                                                                 \
  ((ctx).kernel_device() == ::deltron::DeviceKind::Cuda ? ::deltron::kernels::cuda::kernel##_workspace_bytes((args), (ctx).stream()) \
                                                        : ::deltron::kernels::cpu::kernel##_workspace_bytes((args), (ctx).stream()))
#else
#define DELTRON_CUDA_LAUNCH(ctx, kernel, args) static_cast<void>(0)
#define DELTRON_WORKSPACE_BYTES(ctx, kernel, args) ::deltron::kernels::cpu::kernel##_workspace_bytes((args), (ctx).stream())
#endif

// DELTRON_LAUNCH(ctx, rms_norm_forward, args)
#define DELTRON_LAUNCH(ctx, kernel, args)                                                                      \
  do {                                                                                                         \
    if ((ctx).device() == ::deltron::DeviceKind::Cpu) ::deltron::kernels::cpu::kernel((args), (ctx).stream()); \
    if ((ctx).device() == ::deltron::DeviceKind::Cuda) DELTRON_CUDA_LAUNCH(ctx, kernel, args);                 \
  } while (false)

// Bytes that the kernel wants for these arguments, above: a pure function of sizes, the same on meta.
// Leases the workspace, launches, returns it.
#define DELTRON_LAUNCH_WITH_WORKSPACE(ctx, kernel, args)                                                   \
  do {                                                                                                     \
    ::deltron::WorkspaceLease deltron_lease((ctx), DELTRON_WORKSPACE_BYTES(ctx, kernel, args));            \
    (args).workspace = deltron_lease.workspace();                                                          \
    DELTRON_LAUNCH(ctx, kernel, args);                                                                     \
  } while (false)
