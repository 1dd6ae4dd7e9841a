// The four kinds of golden data, each run through the code that training uses. Limits: tests/golden/README.md.
// Every function fills kind, dtype, kernel and comparisons of the report; a file that cannot be used is an Error.
#pragma once

#include <string>

#include "src/tensor/context.h"
#include "tools/verify/report.h"

namespace deltron::tools {

// op_gdn_* and op_gdn2_*: one call of the gated delta rule or of rule 2, forward and backward, operands in `dtype` (fp32 or bf16).
void check_op(Context& ctx, const std::string& path, DType dtype, FileReport& report);
// layer_gdn_* and layer_gdn2_*: a whole mixer without its input norm, in fp32.
void check_layer(Context& ctx, const std::string& path, FileReport& report);
// optim_adamw: updates with clipping, in fp32.
void check_optimizer(Context& ctx, const std::string& path, FileReport& report);
// A Hugging Face folder with expected.safetensors and grad_norms.json: logits, loss, gradients and ten AdamW losses, in fp32.
void check_model(Context& ctx, const std::string& folder, FileReport& report);

}  // namespace deltron::tools
