// Every kernel file includes this before Highway: it settles which targets are compiled (baseline, AVX2, AVX3), to keep compile
// times down, and how a storage type is computed with. Knows no kernel.
#pragma once

// Off: everything finer than AVX3 (bits below it: AVX3_DL, ZEN4, SPR) and the steps between the baseline and AVX2.
#define HWY_DISABLED_TARGETS ((HWY_AVX3 - 1) | HWY_SSSE3 | HWY_SSE4)

#include <cstdint>
#include <type_traits>

#include "src/base/bfloat16.h"
#include "src/base/check.h"
#include "src/base/dtype.h"

namespace deltron::kernels::cpu {

// The type in which values of storage type S are computed.
template <class S>
struct ComputeOf;
template <>
struct ComputeOf<float> {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <>
struct ComputeOf<bfloat16> {
  using type = float;
};
template <class S>
using Compute = typename ComputeOf<S>::type;

// One value, for code that is not worth a vector.
inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(bfloat16 value) { return to_float(value); }
template <class S>
S narrow(Compute<S> value) {
  if constexpr (std::is_same_v<S, bfloat16>) {
    return to_bfloat16(value);
  } else {
    return value;
  }
}

// Calls function(S{}) with the C++ type of a storage dtype of the CPU kernels.
template <class F>
void with_storage(DType dtype, const char* kernel, const F& function) {
  switch (dtype) {
    case DType::F32: return function(float{});
    case DType::F64: return function(double{});
    case DType::BF16: return function(bfloat16{});
    default: break;
  }
  DELTRON_CHECK(false, kernel, " has no CPU form for ", dtype_name(dtype));
}

// The dtypes that go with a compute type: a weight or state is stored in one of fp32, bf16 (compute fp32) or fp64 (compute fp64).
// Calls function(S{}) with the storage type of `dtype`, which must be computed in C.
template <class C, class F>
void with_storage_of(DType dtype, const char* kernel, const F& function) {
  if constexpr (std::is_same_v<C, double>) {
    DELTRON_CHECK(dtype == DType::F64, kernel, ": fp64 operands go with fp64 parameters, not ", dtype_name(dtype));
    return function(double{});
  } else {
    switch (dtype) {
      case DType::F32: return function(float{});
      case DType::BF16: return function(bfloat16{});
      default: break;
    }
    DELTRON_CHECK(false, kernel, ": fp32 and bf16 operands go with fp32 or bf16 parameters, not ", dtype_name(dtype));
  }
}

}  // namespace deltron::kernels::cpu
