// Which rows of which Hugging Face tensor make up a logical tensor: one declarative list for dense Qwen3.5 text models, used in
// both directions. Knows nothing of files.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/host_array.h"
#include "src/config/run_config.h"

namespace deltron {

// `runs` runs of `run_rows` rows of dimension 0, the first at `first`, one every `stride` rows.
struct RowRanges {
  std::int64_t first = 0;
  std::int64_t run_rows = 0;
  std::int64_t stride = 0;
  std::int64_t runs = 1;
  std::int64_t rows() const { return run_rows * runs; }
};

struct LogicalPiece {
  std::string logical;
  std::vector<std::int64_t> shape;  // of the logical tensor
  std::string hf;
  std::vector<std::int64_t> hf_shape;  // of the whole Hugging Face tensor; a row holds as many values as one of the logical tensor
  RowRanges rows;
};

// In the order of the layers. Throws HfConfigUnsupported where the family has no such model.
std::vector<LogicalPiece> hf_pieces(const TransformerConfig& config);

// The logical tensor out of its Hugging Face tensor (same dtype).
HostArray gather_logical(const LogicalPiece& piece, const HostView& hf);
// All Hugging Face tensors out of all logical ones (weights or their gradients), in order of first use.
std::vector<HostArray> to_hf_layout(const std::vector<LogicalPiece>& pieces, const std::vector<HostView>& logical);

}  // namespace deltron
