// Learning-rate schedules with Megatron's names: linear warm-up, then constant, linear, cosine or WSD (warm-up, stable, decay).
#pragma once

#include <cstdint>

#include "src/config/run_config.h"

namespace deltron {

// Learning rate of update `step` (from 0), a pure function of the configuration and the step: nothing to save.
double learning_rate(const OptimizerConfig& optimizer, std::int64_t decay_iterations, std::int64_t step);

}  // namespace deltron
