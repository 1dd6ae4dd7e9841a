// Process exit codes, one per failure class (docs/errors.md).
#pragma once

namespace deltron {

enum class ExitCode : int {
  Done = 0,
  Usage = 2,           // command line or configuration
  Data = 3,            // token files, text, golden files
  Checkpoint = 4,
  OutOfMemory = 5,
  NonFinite = 6,
  Communication = 7,
  Internal = 8,        // a fault of ours
  StoppedAndSaved = 75 // EX_TEMPFAIL: stopped by a signal or a limit, resumable
};

}  // namespace deltron
