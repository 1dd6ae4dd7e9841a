// How the flat tokens of a micro-batch form documents. Validated once, on the host; the offsets on the device are what kernels read.
// A dense batch is the case of equal lengths. One object serves convolution, delta rule, attention, positions and dropout.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/views.h"
#include "src/tensor/tensor.h"

namespace deltron {

class SequenceLayout {
 public:
  // cu_seqlens: start 0, non-decreasing, last = tokens (else ErrorCode::InvalidOffsets, each condition with its own message).
  // positions [T] default to the position in the document; token_sample and token_offset [T] address random decisions and default
  // to (document, position).
  SequenceLayout(Context& ctx, std::vector<std::int64_t> cu_seqlens, std::int64_t tokens, std::vector<std::int32_t> positions = {},
                 std::vector<std::int64_t> token_sample = {}, std::vector<std::int32_t> token_offset = {});
  static SequenceLayout dense(Context& ctx, std::int64_t batch, std::int64_t length);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return static_cast<std::int64_t>(host_.size()) - 1; }
  std::int64_t longest() const { return longest_; }
  const std::vector<std::int64_t>& cu_seqlens() const { return host_; }
  kernels::Documents device_documents() const;
  const std::int32_t* positions() const;  // on the device
  // Random decisions of one site; drop probability 0 means none.
  kernels::TokenRng token_rng(const RngSite& site, double drop_probability) const;

 private:
  std::int64_t tokens_;
  std::int64_t longest_ = 0;
  std::vector<std::int64_t> host_;
  Tensor offsets_;       // I64 [N+1]
  Tensor positions_;     // I32 [T]
  Tensor token_sample_;  // I64 [T]
  Tensor token_offset_;  // I32 [T]
};

}  // namespace deltron
