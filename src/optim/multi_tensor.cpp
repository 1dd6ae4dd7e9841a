// See multi_tensor.h.
#include "src/optim/multi_tensor.h"

#include <algorithm>
#include <limits>

#include "src/tensor/context.h"

namespace deltron {

std::vector<kernels::MultiTensorChunk> multi_tensor_chunks(const std::vector<std::int64_t>& counts) {
  DELTRON_CHECK_LE(counts.size(), static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()), "tensors of a table");
  std::vector<kernels::MultiTensorChunk> chunks;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::int64_t begin = 0; begin < counts[i]; begin += kernels::kNormBlock) {
      chunks.push_back({begin, static_cast<std::int32_t>(i), static_cast<std::int32_t>(std::min(kernels::kNormBlock, counts[i] - begin))});
    }
  }
  return chunks;
}

MultiTensor::MultiTensor(Context& ctx, std::vector<kernels::MultiTensorEntry> entries) {
  std::vector<std::int64_t> counts;
  for (kernels::MultiTensorEntry& entry : entries) {
    DELTRON_CHECK(entry.dtype == DType::F32 || entry.dtype == DType::F64, "optimizer state is fp32 or fp64, not ", dtype_name(entry.dtype));
    const bool paired = entry.dtype == DType::F64 ? entry.weight_dtype == DType::F64 : is_floating(entry.weight_dtype) && entry.weight_dtype != DType::F64;
    DELTRON_CHECK(entry.weight == nullptr || paired, "weights of ", dtype_name(entry.weight_dtype), " beside masters of ", dtype_name(entry.dtype));
    entry.aligned = kernels::multi_tensor_aligned(entry);
    (entry.dtype == DType::F64 ? has_fp64_ : has_fp32_) = true;
    first_chunk_.push_back(chunk_count_);
    chunk_count_ += (entry.count + kernels::kNormBlock - 1) / kernels::kNormBlock;
    counts.push_back(entry.count);
  }
  first_chunk_.push_back(chunk_count_);
  const auto bytes_of = [](std::size_t count, std::size_t size) { return Shape{static_cast<std::int64_t>(count * size)}; };
  entries_ = Tensor::empty(ctx, bytes_of(entries.size(), sizeof(entries[0])), DType::U8, "optimizer table", MemoryTag::Workspace);
  chunk_table_ = Tensor::empty(ctx, bytes_of(static_cast<std::size_t>(chunk_count_), sizeof(kernels::MultiTensorChunk)), DType::U8, "optimizer chunks",
                               MemoryTag::Workspace);
  if (ctx.is_meta()) return;  // sizes alone: a tensor there may be larger than any memory
  const std::vector<kernels::MultiTensorChunk> chunks = multi_tensor_chunks(counts);
  if (!entries.empty()) copy_from_host(ctx, entries_, entries.data());
  if (!chunks.empty()) copy_from_host(ctx, chunk_table_, chunks.data());
  host_entries_ = std::move(entries);
}

bool MultiTensor::describes(const std::vector<kernels::MultiTensorEntry>& entries) const {
  const auto same = [](const kernels::MultiTensorEntry& a, const kernels::MultiTensorEntry& b) {
    return a.count == b.count && a.master == b.master && a.grad == b.grad && a.exp_avg == b.exp_avg && a.exp_avg_sq == b.exp_avg_sq &&
           a.weight == b.weight;
  };
  return entries_.device() == DeviceKind::Meta || std::equal(host_entries_.begin(), host_entries_.end(), entries.begin(), entries.end(), same);
}

kernels::MultiTensorTable MultiTensor::table() const {
  kernels::MultiTensorTable table;
  table.tensors = static_cast<const kernels::MultiTensorEntry*>(entries_.data());
  table.chunks = static_cast<const kernels::MultiTensorChunk*>(chunk_table_.data());
  table.chunk_count = chunk_count_;
  table.has_fp32 = has_fp32_;
  table.has_fp64 = has_fp64_;
  return table;
}

}  // namespace deltron
