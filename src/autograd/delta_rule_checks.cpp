// See delta_rule_checks.h.
#include "src/autograd/delta_rule_checks.h"

#include "src/base/error.h"

namespace deltron {

void DeltaRuleChecks::require(bool condition, const std::string& what, const std::string& values, const std::string& rule) const {
  if (condition) return;
  throw Error(ErrorCode::InvalidOpInput, ErrorText{what, op_, values, rule, "give tensors that match the declared options"});
}

void DeltaRuleChecks::shape_is(const Tensor& tensor, const char* name, const Shape& expected) const {
  require(tensor.defined(), std::string(name) + " is missing", "", "every input of the declared gate form is given");
  require(tensor.shape() == expected, std::string("shape of ") + name,
          shape_text(tensor.shape()) + ", declared " + shape_text(expected), "shapes follow the options");
}

void DeltaRuleChecks::dtypes(const Tensor& q, const Tensor& k, const Tensor& v) const {
  require(q.dtype() == k.dtype() && q.dtype() == v.dtype(), "dtypes of q, k, v",
          std::string(dtype_name(q.dtype())) + ", " + dtype_name(k.dtype()) + ", " + dtype_name(v.dtype()), "one dtype");
}

void DeltaRuleChecks::gate_parameters(const Tensor& A_log, const Tensor& dt_bias, bool raw, bool allow_neg_eigval, DType compute,
                                      const Shape& A_log_shape, const Shape& dt_bias_shape) const {
  if (raw) {
    shape_is(A_log, "A_log", A_log_shape);
    shape_is(dt_bias, "dt_bias", dt_bias_shape);
    require(A_log.dtype() == compute && dt_bias.dtype() == compute, "dtype of A_log, dt_bias", dtype_name(A_log.dtype()),
            std::string(dtype_name(compute)) + " from initialisation to checkpoint");
    return;
  }
  require(!A_log.defined() && !dt_bias.defined(), "A_log or dt_bias given", "gate form activated", "they belong to raw gates");
  require(!allow_neg_eigval, "allow_neg_eigval", "gate form activated", "it doubles the sigmoid of raw gates");
}

void DeltaRuleChecks::state(const Tensor& initial_state, const Shape& expected, DType compute) const {
  shape_is(initial_state, "initial_state", expected);
  require(initial_state.dtype() == compute, "dtype of initial_state", dtype_name(initial_state.dtype()),
          std::string("states are ") + dtype_name(compute));
}

}  // namespace deltron
