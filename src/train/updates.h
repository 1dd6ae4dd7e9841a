// From the model's parameters to what updates them: which rows this rank's optimizer owns, how gradients are summed over data and context
// ranks before it, which of them count in the norm, and how updated weights come back.
#pragma once

#include "src/train/session.h"

namespace deltron {

// Fills optimizer, optimized, reducer and weight_gather of a session that has a trainable model. Every rank calls it.
void make_updates(Session& session);

// After the last backward of a step: every main gradient that this rank's optimizer reads becomes that of the whole global batch.
void sum_gradients_over_ranks(Session& session);

}  // namespace deltron
