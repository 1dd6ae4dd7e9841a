// Matrix products on cuda: cuBLASLt where it has a plan, else this file's plain kernel (any strides, any mixture of types): a tile
// of 32 x 32 results a block, sums over K in ascending order.
#include "kernels/matmul.h"

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/products.h"

namespace deltron::kernels::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kRowsOfThreads = 8;  // each thread makes four results of its column

template <class C>
__device__ __forceinline__ C element(const void* data, DType dtype, std::int64_t at) {
  if constexpr (std::is_same_v<C, double>) {
    return static_cast<const double*>(data)[at];
  } else {
    switch (dtype) {
      case DType::BF16:
        return widen(static_cast<const bf16*>(data)[at]);
      case DType::F16:
        return widen(static_cast<const fp16*>(data)[at]);
      default:
        return static_cast<const float*>(data)[at];
    }
  }
}

template <class C>
__device__ __forceinline__ void set_element(void* data, DType dtype, std::int64_t at, C value) {
  if constexpr (std::is_same_v<C, double>) {
    static_cast<double*>(data)[at] = value;
  } else {
    switch (dtype) {
      case DType::BF16:
        static_cast<bf16*>(data)[at] = narrow<bf16>(value);
        break;
      case DType::F16:
        static_cast<fp16*>(data)[at] = narrow<fp16>(value);
        break;
      default:
        static_cast<float*>(data)[at] = value;
    }
  }
}

template <class C>
__global__ void __launch_bounds__(kTile* kRowsOfThreads) product_kernel(MatmulArgs g, std::int64_t tiles_of_columns) {
  __shared__ C a_tile[kTile][kTile + 1], b_tile[kTile][kTile + 1];
  const std::int64_t row0 = blockIdx.x / tiles_of_columns * kTile, col0 = blockIdx.x % tiles_of_columns * kTile;
  C sum[kTile / kRowsOfThreads] = {};
  for (std::int64_t k0 = 0; k0 < g.k; k0 += kTile) {
    for (int r = static_cast<int>(threadIdx.y); r < kTile; r += kRowsOfThreads) {
      const std::int64_t row = row0 + r, ka = k0 + threadIdx.x, kb = k0 + r, col = col0 + threadIdx.x;
      a_tile[r][threadIdx.x] =
          row < g.m && ka < g.k ? element<C>(g.a, g.a_dtype, row * g.a_row_stride + ka * g.a_col_stride) : C(0);
      b_tile[r][threadIdx.x] =
          kb < g.k && col < g.n ? element<C>(g.b, g.b_dtype, kb * g.b_row_stride + col * g.b_col_stride) : C(0);
    }
    __syncthreads();
    for (int k = 0; k < kTile; ++k) {
#pragma unroll
      for (int i = 0; i < kTile / kRowsOfThreads; ++i) {
        sum[i] = fma(a_tile[threadIdx.y + i * kRowsOfThreads][k], b_tile[k][threadIdx.x], sum[i]);
      }
    }
    __syncthreads();
  }
  const std::int64_t col = col0 + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kTile / kRowsOfThreads; ++i) {
    const std::int64_t row = row0 + threadIdx.y + i * kRowsOfThreads;
    if (row >= g.m || col >= g.n) continue;
    const std::int64_t at = row * g.c_row_stride + col;
    const C before = g.accumulate ? element<C>(g.c, g.c_dtype, at) : C(0);
    set_element<C>(g.c, g.c_dtype, at, before + sum[i]);
  }
}

void check_dtypes(const MatmulArgs& args) {
  const bool wide = args.a_dtype == DType::F64;
  for (const DType dtype : {args.a_dtype, args.b_dtype, args.c_dtype}) {
    DELTRON_CHECK(is_floating(dtype) && (dtype == DType::F64) == wide,
                  "matmul on cuda takes fp64 throughout, or fp32, bf16 and fp16: a ", dtype_name(args.a_dtype), ", b ",
                  dtype_name(args.b_dtype), ", c ", dtype_name(args.c_dtype));
  }
}

}  // namespace

std::int64_t matmul_workspace_bytes(const MatmulArgs& args, const StreamHandle&) {
  return args.m > 0 && args.n > 0 && library_takes(args) ? kProductWorkspace : 0;
}

void matmul(const MatmulArgs& args, const StreamHandle& stream) {
  check_dtypes(args);
  if (args.m <= 0 || args.n <= 0) return;
  DELTRON_CHECK_GE(args.workspace.bytes, matmul_workspace_bytes(args, stream), "matmul's workspace is smaller than queried");
  if (library_takes(args) && stream.products != nullptr && stream.products->multiply(args, stream.native)) return;
  const std::int64_t tiles_of_columns = ceil_div(args.n, kTile), tiles = tiles_of_columns * ceil_div(args.m, kTile);
  DELTRON_CHECK_LE(tiles, std::int64_t{2147483647}, "matmul: tiles of the plain kernel");
  const dim3 grid(static_cast<unsigned>(tiles));
  const dim3 block(kTile, kRowsOfThreads);
  if (args.a_dtype == DType::F64) {
    product_kernel<double><<<grid, block, 0, native(stream)>>>(args, tiles_of_columns);
  } else {
    product_kernel<float><<<grid, block, 0, native(stream)>>>(args, tiles_of_columns);
  }
  check_launch("matmul");
}

}  // namespace deltron::kernels::cuda
