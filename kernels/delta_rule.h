// What the interfaces of both gated delta rules share.
#pragma once

#include <cstdint>

namespace deltron::kernels {

inline constexpr std::int64_t kDeltaRuleChunk = 64;

enum class GateForm : std::uint8_t {
  Activated,  // gates as the rule uses them; decays are natural logarithms, <= 0
  Raw,        // outputs of a projection: the rule applies softplus with A_log and dt_bias, and sigmoids
};

}  // namespace deltron::kernels
