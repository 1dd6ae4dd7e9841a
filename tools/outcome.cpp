// See outcome.h.
#include "tools/outcome.h"

#include <exception>
#include <new>
#include <string>

#include "src/base/error.h"
#include "src/base/log.h"

namespace deltron::tools {

int exit_code_of(const std::function<ExitCode()>& work) {
  ExitCode code = ExitCode::Internal;
  try {
    code = work();
  } catch (const Error& error) {
    log_error(error.what());
    code = error.exit_code();
  } catch (const StopRequested& stop) {
    log_warning(std::string("stopped: ") + stop.what());
    code = ExitCode::StoppedAndSaved;
  } catch (const std::bad_alloc&) {
    log_error(format_error(ErrorCode::OutOfMemory,
                           ErrorText{"the system has no more memory", "host", "", "", "lower training.micro_batch_size"}));
    code = ExitCode::OutOfMemory;
  } catch (const std::exception& failure) {
    log_error(format_error(ErrorCode::InternalFault, ErrorText{failure.what(), "unexpected failure"}));
  } catch (...) {
    log_error(format_error(ErrorCode::InternalFault, ErrorText{"unknown exception", "unexpected failure"}));
  }
  return static_cast<int>(code);
}

}  // namespace deltron::tools
