// The instruction set that the CPU kernels run on. Chosen at run time, recorded in every run: bits depend on it.
#pragma once

namespace deltron::kernels::cpu {

// "avx3", "avx2", "sse2" ...: Highway's chosen target; BLIS is told the matching one.
const char* instruction_set();

}  // namespace deltron::kernels::cpu
