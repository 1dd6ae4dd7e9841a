// The name of the delta-rule kernel that serves given sizes on a device, for reports.
#pragma once

#include <string>

#include "src/tensor/context.h"

namespace deltron::tools {

struct RuleSizes {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
};
// `second`: rule 2, with gates for every key head.
std::string rule_kernel_name(Context& ctx, bool second, const RuleSizes& sizes, DType dtype);

}  // namespace deltron::tools
