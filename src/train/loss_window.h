// The last training losses, and how far a new one lies above them. Saved in checkpoints, so that warnings do not depend on restarts.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace deltron {

class LossWindow {
 public:
  static constexpr std::size_t kSize = 128;  // losses kept
  static constexpr std::size_t kLeast = 32;  // fewer tell nothing

  struct Spike {
    double z = 0, mean = 0, deviation = 0;
  };
  // Adds a finite loss; tells whether it lies more than `threshold` standard deviations above the mean of those before it (0: never).
  std::optional<Spike> add(double loss, double threshold);

  const std::vector<double>& losses() const { return losses_; }  // oldest first
  void restore(std::vector<double> losses);

 private:
  std::vector<double> losses_;
};

}  // namespace deltron
