// Checks that both delta rules make of their inputs: each condition has its own message (ErrorCode::InvalidOpInput) that names the
// tensor, what it is and what the options declare. Knows no kernels.
#pragma once

#include <string>

#include "src/tensor/sequence_layout.h"
#include "src/tensor/tensor.h"

namespace deltron {

class DeltaRuleChecks {
 public:
  explicit DeltaRuleChecks(const char* op) : op_(op) {}
  void require(bool condition, const std::string& what, const std::string& values, const std::string& rule) const;
  void shape_is(const Tensor& tensor, const char* name, const Shape& expected) const;

  // Head counts; q, k, v; A_log and dt_bias, which raw gates need and activated ones refuse; initial_state.
  template <class Inputs, class Options>
  void common(const Inputs& in, const SequenceLayout& layout, const Options& options, bool raw, const Shape& A_log,
              const Shape& dt_bias) const {
    const std::int64_t T = layout.tokens(), Hk = options.key_heads, Hv = options.value_heads;
    require(Hk > 0 && Hv > 0 && Hv % Hk == 0, "head counts", "Hk " + std::to_string(Hk) + ", Hv " + std::to_string(Hv),
            "value heads are a multiple of key heads");
    shape_is(in.q, "q", {T, Hk, options.key_dim});
    shape_is(in.k, "k", {T, Hk, options.key_dim});
    shape_is(in.v, "v", {T, Hv, options.value_dim});
    dtypes(in.q, in.k, in.v);
    gate_parameters(in.A_log, in.dt_bias, raw, options.allow_neg_eigval, compute_dtype(in.q.dtype()), A_log, dt_bias);
    if (in.initial_state.defined())
      state(in.initial_state, {layout.documents(), Hv, options.key_dim, options.value_dim}, compute_dtype(in.q.dtype()));
  }

 private:
  void dtypes(const Tensor& q, const Tensor& k, const Tensor& v) const;
  void gate_parameters(const Tensor& A_log, const Tensor& dt_bias, bool raw, bool allow_neg_eigval, DType compute,
                       const Shape& A_log_shape, const Shape& dt_bias_shape) const;
  void state(const Tensor& initial_state, const Shape& expected, DType compute) const;

  const char* op_;
};

}  // namespace deltron
