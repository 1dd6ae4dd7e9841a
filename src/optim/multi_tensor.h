// The table of tensors that optimizer kernels run over (kernels/multi_tensor.h), built once and kept on the device: no step uploads
// anything. Holds addresses, not tensors: whoever builds it keeps the tensors alive and in their place.
#pragma once

#include <vector>

#include "kernels/multi_tensor.h"
#include "src/tensor/tensor.h"

namespace deltron {

// Chunks of tensors of these sizes, in order: kNormBlock elements each, the last of a tensor shorter.
std::vector<kernels::MultiTensorChunk> multi_tensor_chunks(const std::vector<std::int64_t>& counts);

class MultiTensor {
 public:
  MultiTensor() = default;
  // Sets `aligned` of every entry.
  MultiTensor(Context& ctx, std::vector<kernels::MultiTensorEntry> entries);

  kernels::MultiTensorTable table() const;
  // Whether tensors are still where the table says.
  bool describes(const std::vector<kernels::MultiTensorEntry>& entries) const;
  std::int64_t chunks() const { return chunk_count_; }
  // Chunks [first_chunk(i), first_chunk(i + 1)) are tensor i's.
  std::int64_t first_chunk(std::size_t tensor) const { return first_chunk_[tensor]; }

 private:
  std::vector<kernels::MultiTensorEntry> host_entries_;
  Tensor entries_, chunk_table_;  // bytes
  std::vector<std::int64_t> first_chunk_;
  std::int64_t chunk_count_ = 0;
  bool has_fp32_ = false, has_fp64_ = false;
};

}  // namespace deltron
