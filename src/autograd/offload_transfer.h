// The copies of activation offload, on the context's two copy streams, ordered by events. The only part of offload that touches bytes;
// on meta nothing is copied and every event is complete. Faults for tests: slow copies, freed buffers full of NaNs.
#pragma once

#include "src/autograd/offload_pool.h"
#include "src/tensor/context.h"
#include "src/tensor/storage.h"

namespace deltron {

struct OffloadFaults {
  double copy_delay_seconds = 0;  // every copy begins that much later
  bool poison = false;            // freed device memory and host buffers are filled with a NaN pattern
};

// All bits set: a NaN in every floating type. Host memory; null (meta) is left alone.
void poison_bytes(void* data, std::int64_t bytes);
// The same for memory of the context's device, in the order of compute.
void poison(Context& ctx, void* data, std::int64_t bytes);

// Device to host, after everything that compute has been given so far. `from` is Resident and is not written before the event.
Event start_copy_out(Context& ctx, const Storage& from, HostBuffer* to, const OffloadFaults& faults);
// Host to device, after `copied_out` and after everything that compute has been given so far (which may have used that memory before).
// `to` is Reloading.
Event start_copy_in(Context& ctx, const HostBuffer* from, const Storage& to, const Event& copied_out, const OffloadFaults& faults);
// Compute goes on only after the event. On the CPU compute is the calling thread.
void compute_waits(Context& ctx, const Event& event);

}  // namespace deltron
