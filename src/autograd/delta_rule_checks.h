// Checks that both delta rules make of their inputs (op_checks.h says what such checks are). Knows no kernels.
#pragma once

#include <string>
#include <vector>

#include "src/autograd/delta_rule_layout.h"
#include "src/autograd/op_checks.h"

namespace deltron {

class DeltaRuleChecks : public OpChecks {
 public:
  DeltaRuleChecks(const Context& ctx, const char* op) : OpChecks(ctx, op, "give tensors that match the declared options") {}

  // A tensor of the declared shape on the context's device, whose last dimension (of the tensors that have one) is contiguous.
  void operand(const Tensor& tensor, const char* name, const Shape& expected) const;
  void gate(const Tensor& tensor, const char* name, const Shape& expected, bool has_dim, DType operands) const;

  // Offsets; head counts and dims; scale; q, k, v; A_log and dt_bias, which raw gates need and activated ones refuse; initial_state.
  template <class Inputs, class Options>
  void common(const Inputs& in, const LayoutPtr& layout, const Options& options, bool raw, const Shape& A_log, const Shape& dt_bias) const {
    const std::int64_t Hk = options.key_heads, Hv = options.value_heads;
    require(Hk > 0 && Hv > 0 && Hv % Hk == 0, "head counts", "Hk " + std::to_string(Hk) + ", Hv " + std::to_string(Hv),
            "value heads are a multiple of key heads");
    require(options.key_dim > 0 && options.value_dim > 0, "head dims",
            "K " + std::to_string(options.key_dim) + ", V " + std::to_string(options.value_dim), "head dims are positive");
    require(options.scale >= 0 && options.scale < 1e30, "scale", std::to_string(options.scale),
            "the scale is a positive number, or 0 for 1/sqrt(K)");
    offsets(layout, options.layout);
    const Shape leading = leading_shape(*layout, options.layout);
    operand(in.q, "q", with_leading(leading, {Hk, options.key_dim}));
    operand(in.k, "k", with_leading(leading, {Hk, options.key_dim}));
    operand(in.v, "v", with_leading(leading, {Hv, options.value_dim}));
    dtypes(in.q, in.k, in.v);
    const DType compute = compute_dtype(in.q.dtype());
    gate_parameter(in.A_log, "A_log", raw, compute, A_log);
    gate_parameter(in.dt_bias, "dt_bias", raw, compute, dt_bias);
    require(raw || !options.allow_neg_eigval, "allow_neg_eigval", "gate form activated", "it doubles the sigmoid of raw gates");
    if (in.initial_state.defined()) state(in.initial_state, {layout->documents(), Hv, options.key_dim, options.value_dim}, compute);
  }

 private:
  void offsets(const LayoutPtr& layout, TensorLayout tensors) const;
  void dtypes(const Tensor& q, const Tensor& k, const Tensor& v) const;
  void gate_parameter(const Tensor& tensor, const char* name, bool raw, DType compute, const Shape& expected) const;
  void state(const Tensor& initial_state, const Shape& expected, DType compute) const;
};

}  // namespace deltron
