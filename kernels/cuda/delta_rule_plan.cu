// The chunk table of packed documents, built on the device from cu_seqlens, and checks of the problem. Knows no arithmetic.
#include <algorithm>

#include "kernels/cuda/delta_rule_launch.h"

namespace deltron::kernels::cuda {
namespace {

constexpr int kScanThreads = 256;

// One block: document_chunk = exclusive prefix sum of the documents' numbers of chunks.
__global__ void count_chunks(const std::int64_t* offsets, std::int64_t documents, std::int64_t* document_chunk) {
  __shared__ std::int64_t sums[kScanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t each = (documents + kScanThreads - 1) / kScanThreads, begin = thread * each;
  const std::int64_t end = begin + each < documents ? begin + each : documents;
  std::int64_t sum = 0;
  for (std::int64_t n = begin; n < end; ++n) sum += (offsets[n + 1] - offsets[n] + kChunk - 1) / kChunk;
  sums[thread] = sum;
  __syncthreads();
  std::int64_t before = 0;
  for (int i = 0; i < thread; ++i) before += sums[i];
  for (std::int64_t n = begin; n < end; ++n) {
    document_chunk[n] = before;
    before += (offsets[n + 1] - offsets[n] + kChunk - 1) / kChunk;
  }
  if (thread == kScanThreads - 1) document_chunk[documents] = before;
}

__global__ void fill_chunks(const std::int64_t* offsets, std::int64_t documents, const std::int64_t* document_chunk,
                            std::int64_t count, Chunk* chunks) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= count) return;
  std::int64_t low = 0, high = documents;  // the last document whose first chunk is <= c (of empty ones in a row: the full one)
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (document_chunk[middle] <= c ? low : high) = middle;
  }
  const std::int64_t begin = (c - document_chunk[low]) * kChunk, rest = offsets[low + 1] - offsets[low] - begin;
  chunks[c] = Chunk{low, static_cast<int>(begin), static_cast<int>(rest < kChunk ? rest : kChunk)};
}

}  // namespace

std::int64_t shared_memory_limit() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    cudaGetLastError();  // no device: whoever asks wants a name or a size
    return kHopperSharedMemory;
  }
  return bytes;
}

void check_problem(const RuleProblem& p) {
  DELTRON_CHECK(p.key_heads > 0 && p.value_heads > 0 && p.value_heads % p.key_heads == 0, "value heads ", p.value_heads,
                " must be a multiple of key heads ", p.key_heads);
  DELTRON_CHECK(p.gate_heads == p.key_heads || p.gate_heads == p.value_heads, "gate heads ", p.gate_heads,
                " must be the key heads or the value heads");
  DELTRON_CHECK(p.key_dim > 0 && p.value_dim > 0, "head dims ", p.key_dim, " and ", p.value_dim);
  DELTRON_CHECK(p.dtype == DType::F32 || p.dtype == DType::BF16 || p.dtype == DType::F16,
                "the delta rules on cuda take fp32, bf16 "
                "and fp16, not ",
                dtype_name(p.dtype));
  const std::int64_t* offsets = p.documents.host();
  const std::int64_t n = p.documents.count;
  DELTRON_CHECK(n == 0 || offsets != nullptr, "documents need offsets");
  for (std::int64_t i = 0; i < n; ++i) {
    DELTRON_CHECK_GE(offsets[i + 1] - offsets[i], 0, "cu_seqlens must not decrease (document ", i, ")");
    DELTRON_CHECK_LT(offsets[i + 1] - offsets[i], std::int64_t{1} << 31, "length of document ", i);
  }
  DELTRON_CHECK_EQ(n == 0 ? 0 : offsets[0], 0, "cu_seqlens must start at 0");
  DELTRON_CHECK_EQ(n == 0 ? 0 : offsets[n], p.tokens, "cu_seqlens must end at the number of tokens");
}

PlanPieces carve_plan(DeltaRuleCarver& carver, const RuleProblem& p) {
  std::int64_t count = 0;
  for (std::int64_t n = 0; n < p.documents.count; ++n) {
    count += (p.documents.host()[n + 1] - p.documents.host()[n] + kChunk - 1) / kChunk;
  }
  PlanPieces pieces{};
  pieces.document_chunk = carver.take<std::int64_t>(p.documents.count + 1);
  pieces.chunks = carver.take<Chunk>(count);
  pieces.count = count;
  return pieces;
}

ChunkTable make_plan(const RuleProblem& p, const PlanPieces& pieces, cudaStream_t stream) {
  launch("delta_rule_count_chunks", &count_chunks, 1, kScanThreads, 0, stream, p.documents.cu_seqlens, p.documents.count,
         pieces.document_chunk);
  launch("delta_rule_fill_chunks", &fill_chunks, (pieces.count + 255) / 256, 256, 0, stream, p.documents.cu_seqlens,
         p.documents.count, pieces.document_chunk, pieces.count, pieces.chunks);
  return ChunkTable{pieces.document_chunk, pieces.chunks, pieces.count};
}

}  // namespace deltron::kernels::cuda
