// The processor as results depend on it: model name and the instruction set that the vector kernels choose.
#pragma once

#include <string>

namespace deltron {

std::string cpu_model_name();
// AVX-512 F, DQ, BW, VL all present and enabled by the system.
bool cpu_has_avx512();
bool cpu_has_avx2_fma();

}  // namespace deltron
