// See offload_transfer.h.
#include "src/autograd/offload_transfer.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "src/base/check.h"

namespace deltron {
namespace {

// The point that compute has reached. It runs inline on the CPU, so everything it was given is done.
Event compute_point(Context& ctx) {
  DELTRON_CHECK(ctx.device() != DeviceKind::Cuda, "offload copies on cuda");
  Event event;
  event.signal();
  return event;
}

void copy(Stream& stream, void* to, const void* from, std::int64_t bytes, double delay) {
  stream.enqueue([=] {
    if (delay > 0) std::this_thread::sleep_for(std::chrono::duration<double>(delay));
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  });
}

}  // namespace

void poison_bytes(void* data, std::int64_t bytes) {
  if (data != nullptr) std::memset(data, 0xFF, static_cast<std::size_t>(bytes));
}

Event start_copy_out(Context& ctx, const Storage& from, HostBuffer* to, const OffloadFaults& faults) {
  DELTRON_CHECK_EQ(from.bytes(), to->bytes, "host buffer for '", from.name(), "'");
  if (ctx.is_meta()) return compute_point(ctx);
  Stream& stream = ctx.copy_out_stream();
  stream.wait(compute_point(ctx));
  copy(stream, to->data, from.data(), from.bytes(), faults.copy_delay_seconds);
  return stream.record();
}

Event start_copy_in(Context& ctx, const HostBuffer* from, const Storage& to, const Event& copied_out, const OffloadFaults& faults) {
  DELTRON_CHECK_EQ(to.bytes(), from->bytes, "host buffer of '", to.name(), "'");
  if (ctx.is_meta()) return compute_point(ctx);
  Stream& stream = ctx.copy_in_stream();
  stream.wait(compute_point(ctx));
  stream.wait(copied_out);
  copy(stream, to.reload_target(), from->data, to.bytes(), faults.copy_delay_seconds);
  return stream.record();
}

void compute_waits(Context& ctx, const Event& event) {
  DELTRON_CHECK(ctx.device() != DeviceKind::Cuda, "offload copies on cuda");
  event.wait();
}

}  // namespace deltron
