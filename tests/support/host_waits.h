// How often this process has called a function of the CUDA run-time that makes the host wait for the device (or may: allocation).
#pragma once

#include <cstdint>

namespace deltron::test {

std::int64_t host_waits();

}  // namespace deltron::test
