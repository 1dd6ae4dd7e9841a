// docs/errors.md, made from the error table.
#pragma once

#include <string>

namespace deltron {

std::string errors_markdown();

}  // namespace deltron
