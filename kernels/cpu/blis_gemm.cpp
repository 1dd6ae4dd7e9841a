// See blis_gemm.h. BLIS's own detection knows only the vendors and families it was written for (it takes its generic C kernels on
// newer AMD processors and on virtual machines), so its kernels are named here, after Highway's choice, before its first use.
#include "kernels/cpu/blis_gemm.h"

#include <cstdlib>
#include <string_view>

#include <blis.h>

#include "kernels/isa.h"

namespace deltron::kernels::cpu {
namespace {

const char* arch_type() {  // numbers of BLIS 0.9's arch_t
  const std::string_view isa = instruction_set();
  if (isa == "avx3") return "0";  // BLIS_ARCH_SKX
  if (isa == "avx2") return "3";  // BLIS_ARCH_HASWELL
  return nullptr;                 // BLIS's own choice
}

// BLIS reads its environment once, when it starts; true when that has happened.
bool start_blis() {
  static_assert(BLIS_ARCH_SKX == 0 && BLIS_ARCH_HASWELL == 3, "BLIS_ARCH_TYPE numbers differ in this BLIS");
  if (const char* type = arch_type()) {
    setenv("BLIS_ARCH_TYPE", type, 1);
  } else {
    unsetenv("BLIS_ARCH_TYPE");
  }
  bli_init();
  return true;
}

void ensure_blis() {
  static const bool started = start_blis();  // allow-listed: one-time set-up of a library
  (void)started;
}

rntm_t single_threaded() {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  bli_rntm_disable_l3_sup(&runtime);  // the small-matrix path gives other bits for other row counts
  return runtime;
}

}  // namespace

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_col, const float* b,
          std::int64_t b_row, std::int64_t b_col, float beta, float* c, std::int64_t c_row, std::int64_t c_col) {
  ensure_blis();
  rntm_t runtime = single_threaded();
  float one = 1;
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, m, n, k, &one, const_cast<float*>(a), a_row, a_col, const_cast<float*>(b), b_row,
               b_col, &beta, c, c_row, c_col, nullptr, &runtime);
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t a_row, std::int64_t a_col, const double* b,
          std::int64_t b_row, std::int64_t b_col, double beta, double* c, std::int64_t c_row, std::int64_t c_col) {
  ensure_blis();
  rntm_t runtime = single_threaded();
  double one = 1;
  bli_dgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, m, n, k, &one, const_cast<double*>(a), a_row, a_col, const_cast<double*>(b), b_row,
               b_col, &beta, c, c_row, c_col, nullptr, &runtime);
}

const char* blis_kernels() {
  ensure_blis();
  return bli_arch_string(bli_arch_query_id());
}

}  // namespace deltron::kernels::cpu
