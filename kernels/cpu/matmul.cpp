// Matrix products on the CPU. C is cut into as many rectangles as threads help; each is one BLIS call (fp32, fp64), or a loop over
// fixed blocks whose bf16 operands are widened into workspace. Cutting M or N changes no bit; K is cut only at fixed places.
#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/cpu/blis_gemm.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/widen.h"
#include "src/base/check.h"
#include "src/base/thread_pool.h"

namespace deltron::kernels::cpu {
namespace {

constexpr std::int64_t kRowGrain = 12, kColGrain = 32;  // multiples of the register tiles of BLIS's skx and haswell kernels
constexpr std::int64_t kMinPartFlops = 2'000'000;       // below this a second thread costs more than it gives
// Blocks of the bf16 form. kBlockK is part of the bits.
constexpr std::int64_t kBlockM = 384, kBlockN = 512, kBlockK = 1024;

struct Cut {
  std::int64_t row_parts = 1, col_parts = 1;
};

// As many parts as threads are useful, in the grid that packs the least: every row part packs B's columns, every column part A's rows.
Cut cut_of(const MatmulArgs& args, const ThreadPool& pool) {
  const double flops = 2.0 * static_cast<double>(args.m) * static_cast<double>(args.n) * static_cast<double>(args.k);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(flops / static_cast<double>(kMinPartFlops)), 1, pool.threads());
  Cut best;
  double best_cost = 0;
  for (std::int64_t rows = 1; rows <= wanted; ++rows) {
    const std::int64_t cols = wanted / rows;
    if ((rows > 1 && args.m < rows * kRowGrain) || (cols > 1 && args.n < cols * kColGrain)) continue;
    const double work = static_cast<double>((args.m + rows - 1) / rows) * static_cast<double>((args.n + cols - 1) / cols);
    const double packing = 16.0 * (static_cast<double>(args.m) / static_cast<double>(rows) + static_cast<double>(args.n) / static_cast<double>(cols));
    const double cost = work + packing;  // of one part, per k
    if (best_cost == 0 || cost < best_cost) {
      best_cost = cost;
      best = Cut{rows, cols};
    }
  }
  return best;
}

struct BlockBytes {
  std::int64_t a = 0, b = 0, c = 0;
  std::int64_t total() const { return a + b + c; }
};

std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

bool needs_blocks(const MatmulArgs& args) {
  return args.a_dtype == DType::BF16 || args.b_dtype == DType::BF16 || args.c_dtype == DType::BF16;
}

BlockBytes block_bytes(const MatmulArgs& args) {
  const std::int64_t m = std::min(args.m, kBlockM), n = std::min(args.n, kBlockN), k = std::min(args.k, kBlockK);
  BlockBytes bytes;
  if (args.a_dtype == DType::BF16) bytes.a = padded(m * k * 4);
  if (args.b_dtype == DType::BF16) bytes.b = padded(k * n * 4);
  if (args.c_dtype == DType::BF16) bytes.c = padded(m * n * 4);
  return bytes;
}

void check(const MatmulArgs& args) {
  const bool doubles = args.a_dtype == DType::F64;
  for (const DType dtype : {args.a_dtype, args.b_dtype, args.c_dtype}) {
    DELTRON_CHECK(doubles ? dtype == DType::F64 : (dtype == DType::F32 || dtype == DType::BF16),
                  "matmul on the CPU takes fp64 throughout, or fp32 and bf16: a ", dtype_name(args.a_dtype), ", b ",
                  dtype_name(args.b_dtype), ", c ", dtype_name(args.c_dtype));
  }
}

struct Rectangle {
  PartRange rows, cols;
};

template <class T>
void multiply(const MatmulArgs& args, const Rectangle& part) {
  const std::int64_t m = part.rows.end - part.rows.begin, n = part.cols.end - part.cols.begin;
  gemm(m, n, args.k, static_cast<const T*>(args.a) + part.rows.begin * args.a_row_stride, args.a_row_stride, args.a_col_stride,
       static_cast<const T*>(args.b) + part.cols.begin * args.b_col_stride, args.b_row_stride, args.b_col_stride,
       static_cast<T>(args.accumulate ? 1 : 0), static_cast<T*>(args.c) + part.rows.begin * args.c_row_stride + part.cols.begin,
       args.c_row_stride, 1);
}

struct Operand {  // fp32, as BLIS wants it
  const float* data;
  std::int64_t row_stride, col_stride;
};

// Block [rows, cols] of an operand at (row, col): in place if it is fp32, else widened into `buffer`.
Operand take_block(const void* data, DType dtype, std::int64_t row_stride, std::int64_t col_stride, std::int64_t row, std::int64_t col,
                   std::int64_t rows, std::int64_t cols, float* buffer) {
  const std::int64_t offset = row * row_stride + col * col_stride;
  if (dtype == DType::F32) return Operand{static_cast<const float*>(data) + offset, row_stride, col_stride};
  const bfloat16* from = static_cast<const bfloat16*>(data) + offset;
  if (row_stride == 1 && col_stride != 1) {  // transposed: keep its columns contiguous
    widen_block(from, col_stride, row_stride, cols, rows, buffer);
    return Operand{buffer, 1, rows};
  }
  widen_block(from, row_stride, col_stride, rows, cols, buffer);
  return Operand{buffer, cols, 1};
}

void multiply_blocks(const MatmulArgs& args, const Rectangle& part, char* workspace) {
  const BlockBytes bytes = block_bytes(args);
  float* a_block = reinterpret_cast<float*>(workspace);
  float* b_block = reinterpret_cast<float*>(workspace + bytes.a);
  float* c_block = reinterpret_cast<float*>(workspace + bytes.a + bytes.b);
  for (std::int64_t col = part.cols.begin; col < part.cols.end; col += kBlockN) {
    const std::int64_t n = std::min(kBlockN, part.cols.end - col);
    for (std::int64_t row = part.rows.begin; row < part.rows.end; row += kBlockM) {
      const std::int64_t m = std::min(kBlockM, part.rows.end - row);
      const std::int64_t c_offset = row * args.c_row_stride + col;
      const bool narrow_c = args.c_dtype == DType::BF16;
      float* c = narrow_c ? c_block : static_cast<float*>(args.c) + c_offset;
      const std::int64_t c_stride = narrow_c ? n : args.c_row_stride;
      bfloat16* stored = static_cast<bfloat16*>(args.c) + c_offset;
      if (narrow_c && args.accumulate) widen_block(stored, args.c_row_stride, 1, m, n, c_block);
      for (std::int64_t k = 0; k == 0 || k < args.k; k += kBlockK) {
        const std::int64_t depth = std::min(kBlockK, args.k - k);
        // One block of B serves every row block when K fits in one.
        const bool fresh_b = args.k > kBlockK || row == part.rows.begin;
        const Operand a = take_block(args.a, args.a_dtype, args.a_row_stride, args.a_col_stride, row, k, m, depth, a_block);
        Operand b{b_block, n, 1};
        if (args.b_dtype == DType::F32 || fresh_b) {
          b = take_block(args.b, args.b_dtype, args.b_row_stride, args.b_col_stride, k, col, depth, n, b_block);
        } else if (args.b_row_stride == 1 && args.b_col_stride != 1) {
          b = Operand{b_block, 1, depth};
        }
        gemm(m, n, depth, a.data, a.row_stride, a.col_stride, b.data, b.row_stride, b.col_stride,
             (k > 0 || args.accumulate) ? 1.0f : 0.0f, c, c_stride, 1);
      }
      if (narrow_c) narrow_block(c_block, m, n, stored, args.c_row_stride);
    }
  }
}

}  // namespace

std::int64_t matmul_workspace_bytes(const MatmulArgs& args, const StreamHandle& stream) {
  if (args.m == 0 || args.n == 0 || !needs_blocks(args)) return 0;
  const Cut cut = cut_of(args, *stream.pool);
  return cut.row_parts * cut.col_parts * block_bytes(args).total();
}

void matmul(const MatmulArgs& args, const StreamHandle& stream) {
  check(args);
  if (args.m == 0 || args.n == 0) return;
  const Cut cut = cut_of(args, *stream.pool);
  const std::int64_t bytes = needs_blocks(args) ? block_bytes(args).total() : 0;
  DELTRON_CHECK_GE(args.workspace.bytes, cut.row_parts * cut.col_parts * bytes, "matmul's workspace is smaller than queried");
  stream.pool->run(cut.row_parts * cut.col_parts, [&](std::int64_t part) {
    const Rectangle rectangle{part_range(args.m, cut.row_parts, part / cut.col_parts, kRowGrain),
                              part_range(args.n, cut.col_parts, part % cut.col_parts, kColGrain)};
    if (rectangle.rows.begin >= rectangle.rows.end || rectangle.cols.begin >= rectangle.cols.end) return;
    if (args.a_dtype == DType::F64) {
      multiply<double>(args, rectangle);
    } else if (bytes == 0) {
      multiply<float>(args, rectangle);
    } else {
      multiply_blocks(args, rectangle, static_cast<char*>(args.workspace.data) + part * bytes);
    }
  });
}

}  // namespace deltron::kernels::cpu
