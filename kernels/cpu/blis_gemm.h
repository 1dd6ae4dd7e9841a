// BLIS, called single-threaded: C = A B + beta C on one block, any strides. For use inside the parts of a parallel loop.
// Bits depend on K and the instruction set, never on M, N, the block's place or the calling thread. beta 0 never reads C.
#pragma once

#include <cstdint>

namespace deltron::kernels::cpu {

// a [m,k], b [k,n], c [m,n]; row stride, then column stride, in elements.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_col, const float* b,
          std::int64_t b_row, std::int64_t b_col, float beta, float* c, std::int64_t c_row, std::int64_t c_col);
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t a_row, std::int64_t a_col, const double* b,
          std::int64_t b_row, std::int64_t b_col, double beta, double* c, std::int64_t c_row, std::int64_t c_col);

// The kernels BLIS was told to use: "skx", "haswell", or "generic".
const char* blis_kernels();

}  // namespace deltron::kernels::cpu
