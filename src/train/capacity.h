// Whether a configuration can be counted and run at all, told before anything of it is built: sizes beyond any machine, and the planned
// peak beside the memory that this machine has. Must not know the loop.
#pragma once

#include "src/base/memory_info.h"
#include "src/config/run_config.h"
#include "src/train/job_ranks.h"

namespace deltron {

// Bytes that a configuration takes at the very least, from its sizes alone (a double, so that nothing overflows): weights, gradients and
// moments, and the widest activation of one micro-batch.
double least_bytes(const RunConfig& config);

// Before a plan is made. Throws ConfigInconsistent for what no machine holds (a zero too many), OutOfMemory where even the token ids of a
// micro-batch exceed the host's memory.
void require_plannable(const RunConfig& config);

// Before a training is built on the CPU: plans it and throws OutOfMemory where the peak exceeds what the machine has in all; warns
// where it exceeds what is free now. training.memory_limit_gib, where set, is met by the allocator instead.
// `ranks`: of the job; those on this machine share its memory.
void require_room(const RunConfig& config, const JobRanks& ranks = {});

// training.memory_limit_gib in bytes, at least one where it is set; 0: none.
std::int64_t memory_limit_bytes(const RunConfig& config);

}  // namespace deltron
