// Which kernels compute the softmax attention of a run: said once at its start, recorded with its checkpoints, and refused early
// where the configuration asks for what cannot be had.
#pragma once

#include "src/train/session.h"

namespace deltron {

// "6 layers by cuDNN 9.19.0"; empty without softmax attention. Throws as choose_attention does.
std::string attention_report(Context& ctx, const RunConfig& config);
// The kernels alone, as their choice can change bits: "cuDNN 9.19.0", "own kernels", or empty.
std::string attention_kernels(Context& ctx, const RunConfig& config);

}  // namespace deltron
