// Global gradient norm and clipping. The norm is an ordered sum of fp64 partials over fixed logical blocks (kernels/reduce.h); of several ranks,
// the sum of theirs in the order of the ranks. The factor stays on the device; a non-finite norm raises a sticky flag there.
#pragma once

#include <memory>
#include <vector>

#include "distributed/communicator.h"
#include "src/optim/multi_tensor.h"

namespace deltron {

class GradientNorm {
 public:
  // `gradients`: contiguous, fp32 or fp64, in a fixed order. They stay where they are. `group`: ranks whose norms are one; together their
  // lists hold every gradient once.
  GradientNorm(Context& ctx, std::vector<Tensor> gradients, std::shared_ptr<Communicator> group = nullptr);

  // Launches norm, clipping factor and flag. clip 0: no clipping.
  void compute(Context& ctx, double clip);

  // Raises the flag if `value` F64 [1] is not finite. Before compute() and the update of the same step: a loss that is not finite freezes
  // as a gradient does.
  void watch(Context& ctx, const Tensor& value);

  // What a host reads of a step, copied behind the work of that step (copy_to_host_later).
  struct Reading {
    double norm = 0;
    std::int32_t nonfinite = 0;
    std::vector<double> partials = {};  // of the blocks of every gradient
  };
  Event read_later(Context& ctx, Reading& reading) const;
  // sqrt of the sum of squares of each gradient, in order.
  std::vector<double> norms(const Reading& reading) const;

  const double* scale() const { return scale_.data_as<const double>(); }            // device
  const std::int32_t* nonfinite_flag() const { return flag_.data_as<const std::int32_t>(); }  // device; sticky
  std::int64_t partial_count() const { return partials_.count(); }
  // Host values of the last compute().
  double norm(Context& ctx) const;
  bool nonfinite(Context& ctx) const;
  void clear_flag(Context& ctx);
  // Index of the first gradient with a NaN or Inf, its element count and how many are bad; -1 if none.
  struct Culprit {
    std::int64_t index = -1;
    std::int64_t bad = 0;
    std::int64_t count = 0;
  };
  Culprit find_nonfinite(Context& ctx) const;

 private:
  std::vector<Tensor> gradients_;
  std::shared_ptr<Communicator> group_;
  MultiTensor table_;
  Tensor partials_, bad_, squared_, scale_, norm_, flag_, watched_;
};

}  // namespace deltron
