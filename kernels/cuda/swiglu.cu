// SwiGLU on cuda: one pass forward; one pass backward that can also write the forward's output again.
#include "kernels/swiglu.h"

#include "kernels/cuda/streams.cuh"

namespace deltron::kernels::cuda {
namespace {

template <class S>
struct Forward {
  SwigluForwardArgs a;
  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    Compute<S> gate[N], up[N];
    const S* h = static_cast<const S*>(a.h.data) + row * a.h.row_stride + col;
    load(h, gate);
    load(h + a.ffn, up);
#pragma unroll
    for (int i = 0; i < N; ++i) up[i] = gate[i] * sigmoid_for<S>(gate[i]) * up[i];
    write_pack(up, static_cast<S*>(a.y.data) + row * a.y.row_stride + col);
  }
};

template <class S>
struct Backward {
  SwigluBackwardArgs a;
  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    using C = Compute<S>;
    C gate[N], up[N], dy[N], dgate[N], dup[N], y[N];
    const S* h = static_cast<const S*>(a.h.data) + row * a.h.row_stride + col;
    load(h, gate);
    load(h + a.ffn, up);
    load(static_cast<const S*>(a.dy.data) + row * a.dy.row_stride + col, dy);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const C s = sigmoid_for<S>(gate[i]);
      const C activated = gate[i] * s;
      y[i] = activated * up[i];
      dgate[i] = dy[i] * up[i] * silu_derivative(gate[i], s);
      dup[i] = dy[i] * activated;
    }
    S* dh = static_cast<S*>(a.dh.data) + row * a.dh.row_stride + col;
    if (a.y.data != nullptr) store(y, static_cast<S*>(a.y.data) + row * a.y.row_stride + col);
    store(dgate, dh);
    store(dup, dh + a.ffn);
  }
};

template <class S, class F>
void launch(bool aligned, const F& function, std::int64_t rows, std::int64_t cols, const StreamHandle& stream) {
  if constexpr (kVector < S >> 1) {
    if (aligned && cols % kVector<S> == 0) return launch_matrix<kVector<S>>(function, rows, cols, stream, "swiglu");
  }
  launch_matrix<1>(function, rows, cols, stream, "swiglu");
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "swiglu", [&](auto s) {
    using S = decltype(s);
    launch<S>(aligned16(args.h, args.dtype) && aligned16(args.y, args.dtype), Forward<S>{args}, args.rows, args.ffn, stream);
  });
}

void swiglu_backward(const SwigluBackwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "swiglu", [&](auto s) {
    using S = decltype(s);
    const bool aligned = aligned16(args.h, args.dtype) && aligned16(args.dy, args.dtype) && aligned16(args.dh, args.dtype) &&
                         (args.y.data == nullptr || aligned16(args.y, args.dtype));
    launch<S>(aligned, Backward<S>{args}, args.rows, args.ffn, stream);
  });
}

}  // namespace deltron::kernels::cuda
