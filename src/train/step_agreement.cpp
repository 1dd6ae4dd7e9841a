// See step_agreement.h.
#include "src/train/step_agreement.h"

#include <cmath>

#include "src/base/error.h"
#include "src/base/signals.h"

namespace deltron {
namespace {

constexpr double kLimitReached = 1000;  // beside signal numbers

std::string stop_text(int rank, int ranks, double reason) {
  if (reason == kLimitReached) return "training.exit_duration_in_mins";
  return std::string(signal_name(static_cast<int>(reason))) + (ranks > 1 ? " on rank " + std::to_string(rank) : "");
}

}  // namespace

void StepAgreement::begin(const BatchCounts& mine, std::int64_t copies, bool limit_reached) {
  const double share = 1.0 / static_cast<double>(copies);
  const double stop = stop_signal() != 0 ? stop_signal() : limit_reached && channel_.rank() == 0 ? kLimitReached : 0;
  channel_.begin_numbers({static_cast<double>(mine.tokens), static_cast<double>(mine.valid_tokens), mine.attention_flops * share, share, stop});
  begun_ = true;
}

AgreedStep StepAgreement::finish() {
  begun_ = false;
  const std::vector<std::vector<double>> ranks = channel_.finish_numbers();
  AgreedStep agreed;
  double tokens = 0, valid = 0;  // whole numbers times a share: sums of a power of two stay exact, others are rounded back
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<double>& said = ranks[rank];
    tokens += said[0] * said[3];
    valid += said[1] * said[3];
    agreed.counts.attention_flops += said[2];
    if (agreed.stop.empty() && said[4] != 0) agreed.stop = stop_text(static_cast<int>(rank), static_cast<int>(ranks.size()), said[4]);
  }
  agreed.counts.tokens = std::llround(tokens);
  agreed.counts.valid_tokens = std::llround(valid);
  return agreed;
}

void agree_on_stop(HostChannel& channel, const char* during) {
  if (channel.size() == 1) return poll_stop(during);
  channel.begin_numbers({static_cast<double>(stop_signal())});
  const std::vector<std::vector<double>> ranks = channel.finish_numbers();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank][0] != 0) throw StopRequested(stop_text(static_cast<int>(rank), channel.size(), ranks[rank][0]));
  }
}

}  // namespace deltron
