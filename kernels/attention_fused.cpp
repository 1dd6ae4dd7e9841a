// See attention_fused.h.
#include "kernels/attention_fused.h"

#include <algorithm>
#include <bit>

#include "src/base/check.h"

namespace deltron::kernels {
namespace {

using std::to_string;
constexpr std::int64_t kAlignment = 256, kShortestDense = 64, kShortestBound = 128, kFirstHalfStep = 2048, kScore = 2;

std::int64_t rounded(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }
std::int64_t power_of_two(std::int64_t value) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value)));
}

struct Bounds {
  std::int64_t above, length;
};
Bounds bounds_of(std::int64_t length) {
  if (length <= kShortestBound) return {0, kShortestBound};
  const std::int64_t whole = power_of_two(length), three_quarters = whole / 4 * 3;
  if (whole < kFirstHalfStep) return {whole / 2, whole};
  return length <= three_quarters ? Bounds{whole / 2, three_quarters} : Bounds{three_quarters, whole};
}

// Bytes of the score matrix that `query_heads` of one document of this bound need in the backward.
double score_bytes(std::int64_t length, std::int64_t query_heads) {
  const auto side = static_cast<double>(rounded(length, 128));
  return static_cast<double>(kScore) * side * side * static_cast<double>(query_heads);
}

// Cuts `documents` documents and all key heads so that the score matrix keeps within its bound.
void cut(FusedAttentionSchedule& schedule, FusedAttentionCall call, std::int64_t documents, std::int64_t query_heads,
         std::int64_t kv_heads, bool backward) {
  std::int64_t most_documents = documents, most_heads = kv_heads;
  if (backward) {
    const double one = score_bytes(call.length, query_heads), budget = static_cast<double>(kFusedScoreBytes);
    const std::int64_t room = std::max<std::int64_t>(static_cast<std::int64_t>(budget / one), 1);
    most_documents = call.ragged ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(room))) : room;
    most_documents = std::min(most_documents, documents);
    if (one > budget) {
      most_heads = std::clamp<std::int64_t>(static_cast<std::int64_t>(budget / score_bytes(call.length, query_heads / kv_heads)), 1,
                                            kv_heads);
      while (kv_heads % most_heads != 0) --most_heads;
    }
  }
  if (!call.ragged) {
    const std::int64_t parts = (documents + most_documents - 1) / most_documents;
    most_documents = (documents + parts - 1) / parts;
  }
  for (std::int64_t first = 0; first < documents; first += most_documents) {
    call.first = first;
    call.taken = std::min(most_documents, documents - first);
    call.batch = call.ragged ? power_of_two(call.taken) : call.taken;
    call.kv_heads = most_heads;
    for (call.first_kv_head = 0; call.first_kv_head < kv_heads; call.first_kv_head += most_heads) schedule.calls.push_back(call);
  }
}

std::string wrong_stride(const char* name, std::int64_t sequence, std::int64_t token, std::int64_t head, const void* data) {
  constexpr std::int64_t kElements = 8;  // 16 bytes of a 2-byte type
  if (sequence % kElements == 0 && token % kElements == 0 && head % kElements == 0 &&
      reinterpret_cast<std::uintptr_t>(data) % 16 == 0)
    return {};
  return std::string(name) + " does not start its rows on 16 bytes";
}
template <class View>
std::string wrong_stride(const char* name, const View& view) {
  return wrong_stride(name, view.sequence_stride, view.token_stride, view.head_stride, view.data);
}

std::int64_t longest_of(const Documents& documents) {
  std::int64_t longest = 0;
  for (std::int64_t n = 0; n < documents.count; ++n) longest = std::max(longest, documents.host()[n + 1] - documents.host()[n]);
  return longest;
}

template <class Args, class... Views>
std::string call_refusal(const Args& args, bool backward, std::initializer_list<std::string> strides, const Views&... views) {
  const std::string shape = fused_attention_refusal(FusedAttentionQuestion{
      args.dtype, args.query_heads, args.kv_heads, args.dim, args.rng.drop_probability, longest_of(args.documents), backward});
  if (!shape.empty()) return shape;
  for (const std::string& fault : strides) {
    if (!fault.empty()) return fault;
  }
  const bool strided = ((views.sequence_stride != 0) || ...);
  const std::int64_t longest = longest_of(args.documents);
  if (strided && (longest < kShortestDense || args.documents.count * longest != args.tokens))
    return "documents of unequal lengths do not lie packed";
  return {};
}

}  // namespace

std::string fused_attention_refusal(const FusedAttentionQuestion& q) {
  if (q.dtype != DType::BF16 && q.dtype != DType::F16)
    return std::string("dtype ") + dtype_name(q.dtype) + "; it takes bf16 and fp16";
  if (q.drop_probability != 0) return "attention_dropout is on, and its own random numbers are not ours";
  if (q.dim < 8 || q.dim > 256 || q.dim % 8 != 0)
    return "heads of " + to_string(q.dim) + " channels; it takes multiples of 8 up to 256";
  if (q.dim > kFusedNarrowDim && q.library_version != 0 && q.library_version < kFusedWideHeadsVersion)
    return "heads of " + to_string(q.dim) + " channels, of which cuDNN below 9.19 computes wrong gradients; it takes up to 128";
  if (q.kv_heads <= 0 || q.query_heads % q.kv_heads != 0)
    return to_string(q.query_heads) + " query heads over " + to_string(q.kv_heads);
  if (q.backward && score_bytes(q.longest, q.query_heads / q.kv_heads) > static_cast<double>(kFusedMostScoreBytes)) {
    return "its reproducible backward keeps a score matrix, and that of one key head over " + to_string(q.longest) +
           " tokens exceeds " + to_string(kFusedMostScoreBytes >> 30) + " GiB";
  }
  return {};
}

std::string fused_attention_refusal(const AttentionForwardArgs& args) {
  return call_refusal(args, false,
                      {wrong_stride("q", args.q), wrong_stride("k", args.k), wrong_stride("v", args.v), wrong_stride("o", args.o)},
                      args.q, args.k, args.v, args.o);
}

std::string fused_attention_refusal(const AttentionBackwardArgs& args) {
  return call_refusal(
      args, true,
      {wrong_stride("q", args.q), wrong_stride("k", args.k), wrong_stride("v", args.v), wrong_stride("o", args.o),
       wrong_stride("d_o", args.d_o), wrong_stride("dq", args.dq), wrong_stride("dk", args.dk), wrong_stride("dv", args.dv)},
      args.q, args.k, args.v, args.o, args.d_o, args.dq, args.dk, args.dv);
}

FusedAttentionSchedule fused_attention_schedule(const Documents& documents, std::int64_t query_heads, std::int64_t kv_heads,
                                                bool backward) {
  FusedAttentionSchedule schedule;
  const std::int64_t* offsets = documents.host();
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < documents.count; ++n) {
    if (offsets[n + 1] > offsets[n]) lengths.push_back(offsets[n + 1] - offsets[n]);
  }
  if (lengths.empty()) return schedule;
  std::sort(lengths.begin(), lengths.end());
  schedule.dense = lengths.front() == lengths.back() && lengths.front() >= kShortestDense;
  if (schedule.dense) {
    cut(schedule, {.length = lengths.front()}, static_cast<std::int64_t>(lengths.size()), query_heads, kv_heads, backward);
    return schedule;
  }
  for (std::size_t at = 0; at < lengths.size();) {
    const Bounds bounds = bounds_of(lengths[at]);
    std::size_t end = at;
    while (end < lengths.size() && lengths[end] <= bounds.length) ++end;
    cut(schedule, {.ragged = true, .length = bounds.length, .above = bounds.above}, static_cast<std::int64_t>(end - at),
        query_heads, kv_heads, backward);
    at = end;
  }
  return schedule;
}

std::int64_t fused_log_sum_exp_place(const FusedAttentionSchedule& schedule, std::int64_t query_heads, std::int64_t token,
                                     std::int64_t head) {
  if (!schedule.dense) return token * query_heads + head;
  const std::int64_t length = schedule.calls.front().length;
  return (token / length * query_heads + head) * length + token % length;
}

std::int64_t fused_places_bytes(const FusedAttentionCall& call) {
  if (!call.ragged) return 0;
  return rounded(call.batch * 4, kAlignment) + rounded(kFusedTensors * (call.batch + 1) * 8, kAlignment);
}

std::int64_t fused_workspace_estimate(const FusedAttentionCall& call, std::int64_t group, std::int64_t dim, bool backward) {
  constexpr std::int64_t kSlack = std::int64_t{1} << 20;
  if (!backward) return kSlack;
  const std::int64_t heads = call.kv_heads * group, side = rounded(call.length, 128), rows = call.batch * heads * side;
  // Scores; gradients of keys and values for every query head before they are summed over a group; a sum a row.
  return rows * side * kScore + (group > 1 ? 2 * rows * dim * 2 : 0) + rows * 4 + kSlack;
}

std::int64_t fused_workspace_estimate(const FusedAttentionSchedule& schedule, std::int64_t group, std::int64_t dim, bool backward) {
  std::int64_t most = 0;
  for (const FusedAttentionCall& call : schedule.calls)
    most = std::max(most, kAlignment + fused_places_bytes(call) + fused_workspace_estimate(call, group, dim, backward));
  return most;
}

}  // namespace deltron::kernels
