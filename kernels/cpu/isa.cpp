// Names the instruction set that run-time dispatch has chosen for the vector kernels.
#include "kernels/isa.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/isa.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

const char* target_name() {
  switch (HWY_TARGET) {
    case HWY_AVX3: return "avx3";
    case HWY_AVX2: return "avx2";
    case HWY_NEON: return "neon";
    default: return "baseline";
  }
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(target_name);

const char* instruction_set() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace deltron::kernels::cpu
#endif
