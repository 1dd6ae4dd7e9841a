// Section `offload` of a configuration at work: the manager's options, and what the first iteration must have shown.
#pragma once

#include "src/train/session.h"

namespace deltron {

// Starts the offload manager of this session's context, if the configuration asks for it.
void configure_offload(Session& session);
// Behind the first step: throws ConfigNoEffect if a module of offload.offload_modules has no storage that is large enough to move.
void require_offload_effect(Session& session);
// Behind the first step, for the log: one line a module; a last one if the policy keeps everything. Empty without offload.
std::string offload_report(Session& session);

}  // namespace deltron
