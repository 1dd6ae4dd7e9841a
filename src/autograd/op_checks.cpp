// See op_checks.h.
#include "src/autograd/op_checks.h"

#include "src/base/error.h"

namespace deltron {

void OpChecks::require(bool condition, const std::string& what, const std::string& values, const std::string& rule) const {
  if (condition) return;
  throw Error(ErrorCode::InvalidOpInput, ErrorText{what, op_, values, rule, fix_});
}

void OpChecks::given(const Tensor& tensor, const char* name) const {
  require(tensor.defined(), std::string(name) + " is missing", "", "every input is given");
  require(tensor.device() == ctx_.device(), std::string("device of ") + name,
          std::string(device_name(tensor.device())) + ", the context's " + device_name(ctx_.device()), "all inputs are on the context's device");
}

void OpChecks::shape_is(const Tensor& tensor, const char* name, const Shape& expected) const {
  require(tensor.shape() == expected, std::string("shape of ") + name, shape_text(tensor.shape()) + ", declared " + shape_text(expected),
          "shapes follow the options");
}

void OpChecks::activations(const Tensor& tensor, const char* name) const {
  const DType dtype = tensor.dtype();
  require(dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F64, std::string("dtype of ") + name, dtype_name(dtype),
          "activations are fp32, bf16 or fp64");
}

void OpChecks::same_dtype(const Tensor& tensor, const char* name, DType expected, const char* as) const {
  require(tensor.dtype() == expected, std::string("dtype of ") + name, std::string(dtype_name(tensor.dtype())) + ", not " + dtype_name(expected),
          std::string("one dtype with ") + as);
}

void OpChecks::parameter_dtype(const Tensor& tensor, const char* name, DType activations) const {
  const DType dtype = tensor.dtype();
  const bool fits = activations == DType::F64 ? dtype == DType::F64 : dtype == DType::F32 || dtype == DType::BF16;
  require(fits, std::string("dtype of ") + name, std::string(dtype_name(dtype)) + " beside " + dtype_name(activations),
          "parameters are fp32 or bf16, and fp64 beside fp64");
}

void OpChecks::rows(const Tensor& tensor, const char* name) const {
  require(tensor.stride(-1) == 1 || tensor.size(-1) == 1, std::string("last dimension of ") + name, "stride " + std::to_string(tensor.stride(-1)),
          "the last dimension is contiguous");
}

void OpChecks::whole(const Tensor& tensor, const char* name) const {
  require(tensor.is_contiguous(), std::string(name) + " is not contiguous", shape_text(tensor.shape()), "it is read as one block");
}

}  // namespace deltron
