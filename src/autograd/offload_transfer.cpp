// See offload_transfer.h.
#include "src/autograd/offload_transfer.h"

#include <cstring>

#include "src/base/check.h"
#include "src/tensor/profile.h"

namespace deltron {
namespace {

void copy(Context& ctx, RangeLane lane, Stream& stream, const Storage& moved, void* to, const void* from, double delay) {
  if (delay > 0) stream.delay(delay);
  if (ctx.ranges() == nullptr) return stream.copy(to, from, moved.bytes());
  const TimeMark before = stream.mark();
  stream.copy(to, from, moved.bytes());
  ctx.ranges()->copied(lane, moved.name(), ctx.scope().layer, before, stream.mark());
}

}  // namespace

void poison_bytes(void* data, std::int64_t bytes) {
  if (data != nullptr) std::memset(data, 0xFF, static_cast<std::size_t>(bytes));
}

Event start_copy_out(Context& ctx, const Storage& from, HostBuffer* to, const OffloadFaults& faults) {
  DELTRON_CHECK_EQ(from.bytes(), to->bytes, "host buffer for '", from.name(), "'");
  if (ctx.is_meta()) return ctx.compute_point();
  Stream& stream = ctx.copy_out_stream();
  stream.wait(ctx.compute_point());
  copy(ctx, RangeLane::CopyOut, stream, from, to->data, from.data(), faults.copy_delay_seconds);
  return stream.record();
}

Event start_copy_in(Context& ctx, const HostBuffer* from, const Storage& to, const Event& copied_out, const OffloadFaults& faults) {
  DELTRON_CHECK_EQ(to.bytes(), from->bytes, "host buffer of '", to.name(), "'");
  if (ctx.is_meta()) return ctx.compute_point();
  Stream& stream = ctx.copy_in_stream();
  stream.wait(ctx.compute_point());
  stream.wait(copied_out);
  copy(ctx, RangeLane::CopyIn, stream, to, to.reload_target(), from->data, faults.copy_delay_seconds);
  return stream.record();
}

void compute_waits(Context& ctx, const Event& event) { ctx.compute_waits(event); }

void poison(Context& ctx, void* data, std::int64_t bytes) { ctx.set_bytes(data, 0xFF, bytes); }

}  // namespace deltron
