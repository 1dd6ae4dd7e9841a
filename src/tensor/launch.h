// The one place that picks the back end of a kernel call. On meta nothing runs, but workspaces are asked for and counted.
#pragma once

#include "src/tensor/context.h"
#include "src/tensor/tensor.h"

// DELTRON_LAUNCH(ctx, rms_norm_forward, args)
#define DELTRON_LAUNCH(ctx, kernel, args)                                  \
  do {                                                                     \
    if ((ctx).device() == ::deltron::DeviceKind::Cpu) ::deltron::kernels::cpu::kernel((args), (ctx).stream()); \
  } while (false)

// Bytes that the kernel wants for these arguments: a pure function of sizes, the same on meta.
#define DELTRON_WORKSPACE_BYTES(ctx, kernel, args) ::deltron::kernels::cpu::kernel##_workspace_bytes((args), (ctx).stream())

// Leases the workspace, launches, returns it.
#define DELTRON_LAUNCH_WITH_WORKSPACE(ctx, kernel, args)                                                   \
  do {                                                                                                     \
    ::deltron::WorkspaceLease deltron_lease((ctx), DELTRON_WORKSPACE_BYTES(ctx, kernel, args));            \
    (args).workspace = deltron_lease.workspace();                                                          \
    DELTRON_LAUNCH(ctx, kernel, args);                                                                     \
  } while (false)
