// What operations with declared options demand of their inputs (ErrorCode::InvalidOpInput): read from metadata alone, so that a check costs
// no transfer and holds on meta as well. Each condition has its own message, which names the tensor, what it is and what was declared.
// Knows no kernels.
#pragma once

#include <string>

#include "src/tensor/context.h"
#include "src/tensor/tensor.h"

namespace deltron {

class OpChecks {
 public:
  // `fix`: what to do about any of them.
  OpChecks(const Context& ctx, const char* op, const char* fix) : ctx_(ctx), op_(op), fix_(fix) {}

  void require(bool condition, const std::string& what, const std::string& values, const std::string& rule) const;
  void given(const Tensor& tensor, const char* name) const;  // defined, and on the device of the context
  void shape_is(const Tensor& tensor, const char* name, const Shape& expected) const;
  void activations(const Tensor& tensor, const char* name) const;                         // a dtype that the kernels have
  void same_dtype(const Tensor& tensor, const char* name, DType expected, const char* as) const;
  void parameter_dtype(const Tensor& tensor, const char* name, DType activations) const;  // fp32 or bf16; fp64 beside fp64
  void rows(const Tensor& tensor, const char* name) const;                                // last dimension contiguous
  void whole(const Tensor& tensor, const char* name) const;                               // contiguous

 protected:
  const Context& ctx_;

 private:
  const char* op_;
  const char* fix_;
};

}  // namespace deltron
