// See delta_rule_checks.h.
#include "src/autograd/delta_rule_checks.h"

namespace deltron {
void DeltaRuleChecks::operand(const Tensor& tensor, const char* name, const Shape& expected) const {
  given(tensor, name);
  shape_is(tensor, name, expected);
  rows(tensor, name);
  for (int dim = 0; dim + 1 < tensor.rank(); ++dim) {
    require(tensor.stride(dim) != 0 || tensor.size(dim) <= 1, std::string(name) + " is broadcast", "stride 0 in dimension " + std::to_string(dim),
            "every element has its own place");
  }
}

void DeltaRuleChecks::gate(const Tensor& tensor, const char* name, const Shape& expected, bool has_dim, DType operands) const {
  if (has_dim) {
    operand(tensor, name, expected);
  } else {  // a gate a head: the last dimension is that of the heads, of any stride
    given(tensor, name);
    shape_is(tensor, name, expected);
  }
  const DType dtype = tensor.dtype();
  const bool fits = operands == DType::F64 ? dtype == DType::F64 : dtype == DType::F32 || dtype == DType::BF16 || dtype == operands;
  require(fits, std::string("dtype of ") + name, std::string(dtype_name(dtype)) + " beside " + dtype_name(operands),
          "gates are fp32 or bf16, and fp64 beside fp64");
}

void DeltaRuleChecks::offsets(const LayoutPtr& layout, TensorLayout tensors) const {
  require(layout != nullptr, "offsets are missing", "", "a sequence layout says where documents begin");
  if (tensors == TensorLayout::Thd) return;
  require(layout->documents() * layout->longest() == layout->tokens(), "documents of unequal lengths",
          std::to_string(layout->documents()) + " documents, " + std::to_string(layout->tokens()) + " tokens, layout " + tensor_layout_name(tensors),
          "layouts with a batch dimension hold sequences of one length; packed documents are thd");
}

void DeltaRuleChecks::dtypes(const Tensor& q, const Tensor& k, const Tensor& v) const {
  const DType dtype = q.dtype();
  const bool cuda = ctx_.kernel_device() == DeviceKind::Cuda;
  require(dtype == DType::F32 || dtype == DType::BF16 || dtype == (cuda ? DType::F16 : DType::F64), "dtype of q", dtype_name(dtype),
          std::string("on ") + device_name(ctx_.kernel_device()) + " operands are fp32, bf16 or " + (cuda ? "fp16" : "fp64"));
  require(dtype == k.dtype() && dtype == v.dtype(), "dtypes of q, k, v",
          std::string(dtype_name(dtype)) + ", " + dtype_name(k.dtype()) + ", " + dtype_name(v.dtype()), "one dtype");
}

void DeltaRuleChecks::gate_parameter(const Tensor& tensor, const char* name, bool raw, DType compute, const Shape& expected) const {
  if (!raw) {
    require(!tensor.defined(), std::string(name) + " is given", "gate form activated", "it belongs to raw gates");
    return;
  }
  operand(tensor, name, expected);
  require(tensor.dtype() == compute, std::string("dtype of ") + name, dtype_name(tensor.dtype()),
          std::string(dtype_name(compute)) + " from initialisation to checkpoint");
}

void DeltaRuleChecks::state(const Tensor& initial_state, const Shape& expected, DType compute) const {
  operand(initial_state, "initial_state", expected);
  require(initial_state.dtype() == compute, "dtype of initial_state", dtype_name(initial_state.dtype()),
          std::string("states are ") + dtype_name(compute));
  whole(initial_state, "initial_state");
}

}  // namespace deltron
