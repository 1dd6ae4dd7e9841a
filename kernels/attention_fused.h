// Softmax attention through a library's fused kernels (cuDNN): what those kernels take, how a micro-batch is cut into calls of
// them, and the workspace of a call. Pure functions of sizes, the same on every machine; knows no library and no device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"

namespace deltron::kernels {

// What decides whether the fused kernels can serve an attention layer.
struct FusedAttentionQuestion {
  DType dtype = DType::BF16;
  std::int64_t query_heads = 0, kv_heads = 0, dim = 0;
  double drop_probability = 0;
  std::int64_t longest = 0;  // document, in tokens
  bool backward = true;
  std::int64_t library_version = 0;  // cuDNN's, 91900 is 9.19.0; 0: not known, taken as new
};
// Seen wrong with 9.14 (gradients over documents of unequal lengths), right with 9.19: heads above 128 channels.
inline constexpr std::int64_t kFusedWideHeadsVersion = 91900, kFusedNarrowDim = 128;
// Why they cannot; empty if they can.
std::string fused_attention_refusal(const FusedAttentionQuestion& question);
// The same for strides of one call: rows and heads start on 16 bytes, unequal documents lie packed. Pointers are asked where they
// exist.
std::string fused_attention_refusal(const AttentionForwardArgs& args);
std::string fused_attention_refusal(const AttentionBackwardArgs& args);

// One call serves `taken` documents and a range of key heads with the query heads that read them. The deterministic backward keeps
// a score matrix (2 bytes a score, kFusedScoreBytes at most where one key head of one document fits into it), hence the cut.
struct FusedAttentionCall {
  bool ragged = false;
  std::int64_t batch = 0;   // documents that the kernel's plan has room for; ragged: a power of two
  std::int64_t length = 0;  // of each; ragged: of the longest that fits
  std::int64_t above = 0;   // ragged: the call is about documents of above < length' <= length
  std::int64_t first = 0;   // its first document; ragged: counted among those
  std::int64_t taken = 0;   // documents; what remains of `batch` is empty
  std::int64_t first_kv_head = 0;
  std::int64_t kv_heads = 0;
};
inline constexpr std::int64_t kFusedScoreBytes = std::int64_t{1} << 30;
inline constexpr std::int64_t kFusedMostScoreBytes = std::int64_t{16} << 30;  // of one key head of one document

// Documents of one length (64 or more; empty ones apart) are a dense batch. Others go by length: the bounds are 128, 256, 512,
// 1024, then 1.5 x and 2 x of each, so that a document wastes less than half of its call's score matrix and few plans serve all
// packings.
struct FusedAttentionSchedule {
  bool dense = false;
  std::vector<FusedAttentionCall> calls;
};
FusedAttentionSchedule fused_attention_schedule(const Documents& documents, std::int64_t query_heads, std::int64_t kv_heads,
                                                bool backward);

// log_sum_exp as the fused kernels keep it: dense [documents, query_heads, length], otherwise [tokens, query_heads]. The place of
// one entry, for tests.
std::int64_t fused_log_sum_exp_place(const FusedAttentionSchedule& schedule, std::int64_t query_heads, std::int64_t token,
                                     std::int64_t head);

// Places of a call's documents, made on the device: an int32 length each, then an int64 offset for each tensor.
inline constexpr std::int64_t kFusedTensors = 9;
std::int64_t fused_places_bytes(const FusedAttentionCall& call);
// An upper bound of what cuDNN asks for one call, places apart (seen with 9.19: what it asks lies below).
std::int64_t fused_workspace_estimate(const FusedAttentionCall& call, std::int64_t group, std::int64_t dim, bool backward);
// Of the largest call, places included.
std::int64_t fused_workspace_estimate(const FusedAttentionSchedule& schedule, std::int64_t group, std::int64_t dim, bool backward);

}  // namespace deltron::kernels
