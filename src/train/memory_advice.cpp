// See memory_advice.h.
#include "src/train/memory_advice.h"

#include "src/base/human.h"

namespace deltron {
namespace {

std::string bytes_text(std::int64_t bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)); }

// The plan must not meet the limit that the run met.
std::int64_t planned_peak(RunConfig config) {
  config.training.memory_limit_gib = 0;
  return make_plan(config).memory.peak;
}

}  // namespace

std::vector<MemoryRemedy> memory_remedies(const RunConfig& config) {
  std::vector<MemoryRemedy> remedies;
  for (std::int64_t micro = config.training.micro_batch_size - 1; micro >= 1; --micro) {
    if (config.training.micro_batch_size % micro != 0) continue;  // the global batch stays whole
    RunConfig smaller = config;
    smaller.training.micro_batch_size = micro;
    remedies.push_back({"training.micro_batch_size=" + std::to_string(micro), "same global batch, more accumulation", planned_peak(smaller)});
  }
  if (config.training.seq_length >= 2) {
    RunConfig shorter = config;
    shorter.training.seq_length /= 2;
    remedies.push_back({"training.seq_length=" + std::to_string(shorter.training.seq_length), "another training: shorter context", planned_peak(shorter)});
  }
  return remedies;
}

Error with_memory_advice(const Error& error, const RunConfig& config, std::int64_t limit) {
  ErrorText text = error.text();
  const std::int64_t now = planned_peak(config);
  const MemoryRemedy* best = nullptr;
  const std::vector<MemoryRemedy> remedies = memory_remedies(config);
  std::int64_t smallest = now;
  for (const MemoryRemedy& remedy : remedies) {
    smallest = std::min(smallest, remedy.peak);
    if (best == nullptr && (limit > 0 ? remedy.peak <= limit : remedy.peak < now)) best = &remedy;
  }
  const std::string planned = "this configuration needs " + bytes_text(now) + " by plan";
  if (best != nullptr) {
    text.fix = best->change + " (" + best->price + ") saves " + bytes_text(now - best->peak) + ": " + bytes_text(best->peak) + " by plan; " + planned;
  } else {
    text.fix = "a smaller model: " + planned + ", and " + bytes_text(smallest) + " with the smallest micro-batch or half the seq_length";
  }
  return Error(error.code(), text);
}

}  // namespace deltron
