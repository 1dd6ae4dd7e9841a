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
    const S* h = static_cast<const S*>(a.h.data) + row * a.h.row_stride + col;
    const Pack<S, N> gates = read_pack<S, N>(h), ups = read_pack<S, N>(h + a.ffn);
    const Pack<S, N> slopes = read_pack<S, N>(static_cast<const S*>(a.dy.data) + row * a.dy.row_stride + col);
    Pack<S, N> y, dgates, dups;
    // By twos, kept as they are stored: half the registers, twice the threads.
    constexpr int kPart = N % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < N; i += kPart) {
      C first[kPart], second[kPart], third[kPart];
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        const C gate = widen(gates.value[i + j]), up = widen(ups.value[i + j]), dy = widen(slopes.value[i + j]);
        const C s = sigmoid_for<S>(gate), activated = gate * s;
        first[j] = activated * up;
        second[j] = dy * up * silu_derivative(gate, s);
        third[j] = dy * activated;
      }
      put(y, i, first), put(dgates, i, second), put(dups, i, third);
    }
    S* dh = static_cast<S*>(a.dh.data) + row * a.dh.row_stride + col;
    if (a.y.data != nullptr) *reinterpret_cast<Pack<S, N>*>(static_cast<S*>(a.y.data) + row * a.y.row_stride + col) = y;
    *reinterpret_cast<Pack<S, N>*>(dh) = dgates;
    *reinterpret_cast<Pack<S, N>*>(dh + a.ffn) = dups;
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
