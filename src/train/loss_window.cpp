// See loss_window.h.
#include "src/train/loss_window.h"

#include <cmath>

#include "src/base/check.h"

namespace deltron {

std::optional<LossWindow::Spike> LossWindow::add(double loss, double threshold) {
  DELTRON_CHECK(std::isfinite(loss), "a non-finite loss ends the run before it reaches the window");
  std::optional<Spike> found;
  if (threshold > 0 && losses_.size() >= kLeast) {
    Spike spike;
    for (double value : losses_) spike.mean += value;
    spike.mean /= static_cast<double>(losses_.size());
    double squares = 0;
    for (double value : losses_) squares += (value - spike.mean) * (value - spike.mean);
    spike.deviation = std::sqrt(squares / static_cast<double>(losses_.size() - 1));
    spike.z = spike.deviation > 0 ? (loss - spike.mean) / spike.deviation : 0;
    if (spike.z > threshold) found = spike;
  }
  losses_.push_back(loss);
  if (losses_.size() > kSize) losses_.erase(losses_.begin());
  return found;
}

void LossWindow::restore(std::vector<double> losses) {
  losses_ = std::move(losses);
  if (losses_.size() > kSize) losses_.erase(losses_.begin(), losses_.end() - static_cast<std::ptrdiff_t>(kSize));
}

}  // namespace deltron
