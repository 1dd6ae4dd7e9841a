// See schedule.h.
#include "src/optim/schedule.h"

#include <algorithm>
#include <cmath>

namespace deltron {
namespace {

constexpr double kPi = 3.14159265358979323846;

double wsd_share(LrWsdDecayStyle style, double progress) {
  switch (style) {
    case LrWsdDecayStyle::Linear: return 1.0 - progress;
    case LrWsdDecayStyle::Cosine: return 0.5 * (std::cos(kPi * progress) + 1.0);
    case LrWsdDecayStyle::Exponential: return 2.0 * std::pow(0.5, progress) - 1.0;
    case LrWsdDecayStyle::MinusSqrt: return 1.0 - std::sqrt(progress);
  }
  return 1.0;
}

}  // namespace

double learning_rate(const OptimizerConfig& optimizer, std::int64_t decay_iterations, std::int64_t step) {
  const auto updates = static_cast<double>(step + 1);  // the first update already moves
  const auto warmup = static_cast<double>(optimizer.lr_warmup_iters);
  if (warmup > 0 && updates <= warmup) return optimizer.lr * updates / warmup;
  if (optimizer.lr_decay_style == LrDecayStyle::Constant) return optimizer.lr;
  const auto end = static_cast<double>(decay_iterations);
  if (updates > end) return optimizer.min_lr;
  double share = 1.0;
  if (optimizer.lr_decay_style == LrDecayStyle::Wsd) {
    const auto decay = static_cast<double>(optimizer.lr_wsd_decay_iters);
    const double begin = end - decay;
    if (updates > begin && decay > 0) share = wsd_share(optimizer.lr_wsd_decay_style, (updates - begin) / decay);
  } else {
    const double progress = end > warmup ? (updates - warmup) / (end - warmup) : 1.0;
    share = optimizer.lr_decay_style == LrDecayStyle::Linear ? 1.0 - progress : 0.5 * (std::cos(kPi * progress) + 1.0);
  }
  return optimizer.min_lr + share * (optimizer.lr - optimizer.min_lr);
}

}  // namespace deltron
