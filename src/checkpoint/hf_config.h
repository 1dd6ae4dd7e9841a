// config.json of a Hugging Face model folder to TransformerConfig: dense Qwen3.5 text models, alone or inside a multimodal config.
// What Deltron does not build is refused by key and value. Knows nothing of weights.
#pragma once

#include <string>
#include <string_view>

#include "src/config/run_config.h"

namespace deltron {

TransformerConfig parse_hf_config(std::string_view text, const std::string& where);
TransformerConfig read_hf_config(const std::string& path);  // of config.json

}  // namespace deltron
