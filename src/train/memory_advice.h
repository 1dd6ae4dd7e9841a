// After an out-of-memory error: which change of the configuration saves how much, by plan, and which is the cheapest that fits.
#pragma once

#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/train/plan.h"

namespace deltron {

struct MemoryRemedy {
  std::string change;      // "training.micro_batch_size=4"
  std::string price;       // what it costs, in words
  std::int64_t peak = 0;   // planned bytes with it
};
// Cheapest first: what leaves the numbers of the training alone comes before what changes them.
std::vector<MemoryRemedy> memory_remedies(const RunConfig& config);

// The same error with the remedies as its fix. `limit` in bytes; 0: unknown (then the largest saving of the cheapest kind is named).
Error with_memory_advice(const Error& error, const RunConfig& config, std::int64_t limit);

}  // namespace deltron
