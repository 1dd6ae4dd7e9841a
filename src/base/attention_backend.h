// Who computes softmax attention (Megatron's words): the configuration asks with it, the layers choose by it.
#pragma once

namespace deltron {

enum class AttentionBackend {
  Auto,   // fused where it can be had, otherwise local
  Fused,  // cuDNN
  Local,  // kernels/attention.h
};

}  // namespace deltron
