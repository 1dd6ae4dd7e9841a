// How the flat tokens of a micro-batch form documents. Validated once, on the host; the offsets on the device are what kernels read.
// A dense batch is the case of equal lengths. One object serves convolution, delta rule, attention, positions and dropout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/views.h"
#include "src/tensor/tensor.h"

namespace deltron {

// Which tokens of a micro-batch a rank has.
struct TokenShare {
  int context_ranks = 1, context_rank = 0;  // documents are cut as src/base/sequence_cut.h says
  int row_ranks = 1, row_rank = 0;          // sequence parallelism: of the rows that are left, equal runs one after the other
};

class SequenceLayout {
 public:
  // cu_seqlens: start 0, non-decreasing, last = tokens (else ErrorCode::InvalidOffsets, each condition with its own message).
  // positions [T] default to the position in the document; token_sample and token_offset [T] address random decisions and default
  // to (document, position).
  SequenceLayout(Context& ctx, std::vector<std::int64_t> cu_seqlens, std::int64_t tokens, std::vector<std::int32_t> positions = {},
                 std::vector<std::int64_t> token_sample = {}, std::vector<std::int32_t> token_offset = {});
  static SequenceLayout dense(Context& ctx, std::int64_t batch, std::int64_t length);
  // What a rank has of the tokens that the other arguments describe. The residual stream, MLP and dropout between the layers see the share;
  // mixers see whole() after an exchange. Throws ErrorCode::InvalidOffsets where the documents cannot be cut.
  static std::shared_ptr<const SequenceLayout> shared(Context& ctx, const TokenShare& share, std::vector<std::int64_t> cu_seqlens,
                                                      std::int64_t tokens, std::vector<std::int32_t> positions = {},
                                                      std::vector<std::int64_t> token_sample = {}, std::vector<std::int32_t> token_offset = {});

  // Null where this layout is that of all tokens.
  const std::shared_ptr<const SequenceLayout>& whole() const { return whole_; }
  // Context parallelism (else undefined): I32 [tokens of the whole]. The rows of all ranks, one rank after the other, put in the order of the
  // whole: whole[i] = rows[to_whole[i]]; and the way back: rows[i] = whole[to_rows[i]].
  const Tensor& to_whole() const { return to_whole_; }
  const Tensor& to_rows() const { return to_rows_; }

  std::int64_t tokens() const { return tokens_; }  // of a share: its rows before sequence parallelism cuts them
  std::int64_t documents() const { return static_cast<std::int64_t>(host_.size()) - 1; }
  std::int64_t longest() const { return longest_; }
  const std::vector<std::int64_t>& cu_seqlens() const { return host_; }
  kernels::Documents device_documents() const;
  const std::int32_t* positions() const;  // on the device
  // Random decisions of one site; drop probability 0 means none.
  kernels::TokenRng token_rng(const RngSite& site, double drop_probability) const;

 private:
  SequenceLayout() = default;
  void describe_rows(Context& ctx, const std::vector<std::int32_t>& positions, const std::vector<std::int64_t>& token_sample,
                     const std::vector<std::int32_t>& token_offset);
  std::int64_t tokens_ = 0;
  std::int64_t longest_ = 0;
  std::vector<std::int64_t> host_;
  Tensor offsets_;       // I64 [N+1]
  Tensor positions_;     // I32 [T]
  Tensor token_sample_;  // I64 [T]
  Tensor token_offset_;  // I32 [T]
  std::shared_ptr<const SequenceLayout> whole_;
  Tensor to_whole_, to_rows_;
};

}  // namespace deltron
