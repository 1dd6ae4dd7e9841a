// Where the gradient of a small parameter (norm weight, A_log, convolution) is summed: straight into its main gradient if it has one,
// else into a zeroed buffer that becomes the input's gradient.
#pragma once

#include "src/autograd/node.h"
#include "src/tensor/ops.h"

namespace deltron {

class ParameterGradient {
 public:
  // `shape` and `compute` dtype of what the kernel adds to; `dtype` of the parameter itself.
  ParameterGradient(Context& ctx, BackwardCall& call, int input, const Shape& shape, DType compute, DType dtype)
      : ctx_(ctx), call_(call), input_(input), dtype_(dtype) {
    if (!call.wanted(input)) return;
    buffer_ = call.main_gradient(input);
    is_main_ = buffer_.defined();
    if (is_main_) {
      DELTRON_CHECK(buffer_.dtype() == compute, "main gradient of '", buffer_.name(), "' is ", dtype_name(buffer_.dtype()), ", not ",
                    dtype_name(compute));
      DELTRON_CHECK(buffer_.shape() == shape, "main gradient of '", buffer_.name(), "'");
    } else {
      buffer_ = Tensor::zeros(ctx, shape, compute, "parameter gradient");
    }
  }
  // Null means "not wanted", also to queries of workspace sizes; so on meta, where no kernel runs, any other address will do.
  void* data() const {
    if (!buffer_.defined()) return nullptr;
    return ctx_.is_meta() ? static_cast<void*>(&ctx_) : buffer_.data();
  }
  const Tensor& buffer() const { return buffer_; }
  void finish() {
    if (!buffer_.defined()) return;
    if (is_main_) {
      call_.accumulated(input_);
      return;
    }
    if (buffer_.dtype() == dtype_) {
      call_.set_gradient(input_, buffer_);
      return;
    }
    Tensor rounded = Tensor::empty(ctx_, buffer_.shape(), dtype_, "parameter gradient");
    convert(ctx_, buffer_, rounded);
    call_.set_gradient(input_, rounded);
  }

 private:
  Context& ctx_;
  BackwardCall& call_;
  int input_;
  DType dtype_;
  Tensor buffer_;
  bool is_main_ = false;
};

// dW [out,in] (+)= dy^T [out,T] x [T,in].
void weight_gradient(Context& ctx, BackwardCall& call, int input, const Tensor& weight, const Tensor& dy, const Tensor& x);

}  // namespace deltron
