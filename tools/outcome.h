// Which exit code and which message each kind of failure becomes (src/base/exit_code.h).
#pragma once

#include <functional>

#include "src/base/exit_code.h"

namespace deltron::tools {

// Runs `work`; an exception is logged as the last message on stderr and becomes its exit code.
int exit_code_of(const std::function<ExitCode()>& work);

}  // namespace deltron::tools
