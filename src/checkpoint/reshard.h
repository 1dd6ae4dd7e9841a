// Writes a checkpoint anew in another number of pieces. Training needs no such step, as any layout loads what any layout saved; it
// is for copying, for other programs, and for joining the pieces of many ranks. Knows nothing of models.
#pragma once

#include <string>

#include "src/checkpoint/writer.h"

namespace deltron {

// `source` is a step folder; `run` a folder without this step. Every tensor is cut along its rows into `pieces` blocks that differ by at
// most one row, each in files of its own; 1 makes every tensor whole. Content, step and state stay as they are.
SaveReport reshard_checkpoint(const std::string& source, const std::string& run, int pieces, WriteObserver* observer = nullptr);

}  // namespace deltron
