// From a YAML node to the value of one key, strictly: none of YAML 1.1's surprises (yes, 010, 1e3 as integer, ~).
#pragma once

#include "src/config/schema.h"
#include "src/config/yaml_tree.h"

namespace deltron {

struct ConversionFault {
  ErrorCode code;
  ErrorText text;  // without the place
  const YamlNode* node;  // at fault: an entry of a list, say
};
// Type, then range and words. Empty where `value` was filled; `notice` then tells of an alias that was read, or is empty.
std::vector<ConversionFault> convert(const Field& field, const YamlNode& node, FieldValue& value, std::string& notice);

}  // namespace deltron
