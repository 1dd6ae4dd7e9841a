// Lengths and offsets of the documents that one ragged call of the fused attention serves, written by the device from the
// micro-batch's offsets: the host neither waits nor copies.
#pragma once

#include "kernels/attention_fused.h"

namespace deltron::kernels::cuda {

struct AttentionPlacesArgs {
  Documents documents;
  std::int64_t tokens = 0;
  FusedAttentionCall call;
  std::int64_t strides[kFusedTensors] = {};  // elements from token to token; offsets are of these
  std::int32_t* lengths = nullptr;           // [batch]; 0 behind the call's documents
  std::int64_t* offsets = nullptr;           // [kFusedTensors, batch + 1]
};
void attention_places(const AttentionPlacesArgs& args, void* stream);

}  // namespace deltron::kernels::cuda
