// Conversion, fill, sums, scaling, dropout and the sigmoid gate on cuda: one pass, 16-byte accesses where rows allow them.
#include "kernels/elementwise.h"

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

template <class X, class Y>
struct Convert {
  MatrixView x;
  MutableMatrixView y;
  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    Compute<Y> value[N];
    load(static_cast<const X*>(x.data) + row * x.row_stride + col, value);
    store(value, static_cast<Y*>(y.data) + row * y.row_stride + col);
  }
};

template <class X, class Y>
struct Accumulate {
  MatrixView x;
  MutableMatrixView y;
  Compute<Y> scale;
  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    Compute<Y> value[N], sum[N];
    Y* to = static_cast<Y*>(y.data) + row * y.row_stride + col;
    load(static_cast<const X*>(x.data) + row * x.row_stride + col, value);
    load(to, sum);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = value[i] * scale + sum[i];
    store(sum, to);
  }
};

template <class S>
struct Fill {
  S* y;
  S value;
  template <int N>
  __device__ void at(std::int64_t, std::int64_t i) const {
    Pack<S, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) pack.value[j] = value;
    *reinterpret_cast<Pack<S, N>*>(y + i) = pack;
  }
};

template <class S>
struct Add {
  const S *a, *b;
  S* y;
  template <int N>
  __device__ void at(std::int64_t, std::int64_t i) const {
    Compute<S> x[N], sum[N];
    load(a + i, x);
    load(b + i, sum);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = x[j] + sum[j];
    store(sum, y + i);
  }
};

template <class S>
struct Scale {
  S* y;
  Compute<S> factor;
  template <int N>
  __device__ void at(std::int64_t, std::int64_t i) const {
    Compute<S> x[N];
    load(y + i, x);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] *= factor;
    store(x, y + i);
  }
};

// Groups of four columns share one block of random words.
template <class S>
struct Dropout {
  const S *x, *residual;
  S* y;
  std::int64_t cols;
  TokenRng rng;
  std::uint32_t threshold;
  Compute<S> factor;
  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    using C = Compute<S>;
    C value[N], base[N];
    const std::int64_t place = row * cols + col;
    load(x + place, value);
    if (threshold != 0) {
      Philox4 words{};
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const std::int64_t c = col + i;
        if (i == 0 || c % 4 == 0) {
          words = rng_words(rng.key, static_cast<std::uint64_t>(rng.token_sample[row]),
                            static_cast<std::uint32_t>(rng.token_offset[row]), static_cast<std::uint32_t>(c / 4));
        }
        const std::int64_t which = c % 4;
        const std::uint32_t word = which == 0   ? words.word[0]
                                   : which == 1 ? words.word[1]
                                   : which == 2 ? words.word[2]
                                                : words.word[3];
        value[i] = word < threshold ? C(0) : value[i] * factor;
      }
    }
    if (residual != nullptr) {
      load(residual + place, base);
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] = base[i] + value[i];
    }
    store(value, y + place);
  }
};

template <class S>
struct GateForward {
  SigmoidGateForwardArgs a;
  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    Compute<S> x[N], gate[N];
    load(static_cast<const S*>(a.x.data) + row * a.x.row_stride + col, x);
    load(static_cast<const S*>(a.gate.data) + row * a.gate.row_stride + col, gate);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= sigmoid(gate[i]);
    store(x, static_cast<S*>(a.y.data) + row * a.y.row_stride + col);
  }
};

template <class S>
struct GateBackward {
  SigmoidGateBackwardArgs a;
  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    using C = Compute<S>;
    C x[N], gate[N], dy[N], dx[N], dgate[N];
    load(static_cast<const S*>(a.x.data) + row * a.x.row_stride + col, x);
    load(static_cast<const S*>(a.gate.data) + row * a.gate.row_stride + col, gate);
    load(static_cast<const S*>(a.dy.data) + row * a.dy.row_stride + col, dy);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const C s = sigmoid(gate[i]);
      dx[i] = dy[i] * s;
      dgate[i] = dy[i] * x[i] * (s * (C(1) - s));
    }
    store(dx, static_cast<S*>(a.dx.data) + row * a.dx.row_stride + col);
    store(dgate, static_cast<S*>(a.dgate.data) + row * a.dgate.row_stride + col);
  }
};

// Values a thread moves at once between two types.
template <class X, class Y>
inline constexpr int kPairVector = std::is_same_v<X, double> || std::is_same_v<Y, double>
                                       ? 1
                                       : static_cast<int>(16 / (sizeof(X) < sizeof(Y) ? sizeof(X) : sizeof(Y)));

template <class Args>
void flatten(Args& args) {  // whole rows in one: a long row is cut better than many short ones
  if (args.x.row_stride != args.cols || args.y.row_stride != args.cols) return;
  args.cols *= args.rows;
  args.rows = 1;
  args.x.row_stride = args.y.row_stride = args.cols;
}

template <int kWide, class F>
void launch(bool aligned, const F& function, std::int64_t rows, std::int64_t cols, const StreamHandle& stream, const char* what) {
  if constexpr (kWide > 1) {
    if (aligned) return launch_matrix<kWide>(function, rows, cols, stream, what);
  }
  launch_matrix<1>(function, rows, cols, stream, what);
}

}  // namespace

void convert(const ConvertArgs& given, const StreamHandle& stream) {
  ConvertArgs args = given;
  if (args.rows <= 0 || args.cols <= 0) return;
  if (args.x_dtype == args.y_dtype) {
    const std::size_t size = dtype_size(args.x_dtype);
    check_status(static_cast<int>(
                     cudaMemcpy2DAsync(args.y.data, static_cast<std::size_t>(args.rows == 1 ? args.cols : args.y.row_stride) * size,
                                       args.x.data, static_cast<std::size_t>(args.rows == 1 ? args.cols : args.x.row_stride) * size,
                                       static_cast<std::size_t>(args.cols) * size, static_cast<std::size_t>(args.rows),
                                       cudaMemcpyDeviceToDevice, native(stream))),
                 "convert");
    return;
  }
  flatten(args);
  with_storage(args.x_dtype, "convert", [&](auto x) {
    with_storage(args.y_dtype, "convert", [&](auto y) {
      using X = decltype(x);
      using Y = decltype(y);
      if constexpr (!std::is_same_v<X, Y>) {
        launch<kPairVector<X, Y>>(aligned16(args.x, args.x_dtype) && aligned16(args.y, args.y_dtype), Convert<X, Y>{args.x, args.y},
                                  args.rows, args.cols, stream, "convert");
      }
    });
  });
}

void fill(const FillArgs& args, const StreamHandle& stream) {
  if (args.count <= 0) return;
  if (args.value == 0) {  // every dtype: all bits zero
    check_status(
        static_cast<int>(cudaMemsetAsync(args.y, 0, static_cast<std::size_t>(args.count) * dtype_size(args.dtype), native(stream))),
        "fill");
    return;
  }
  const double value = args.value;
  switch (args.dtype) {
    case DType::F32:
      return launch<4>(aligned16(args.y), Fill<float>{static_cast<float*>(args.y), static_cast<float>(value)}, 1, args.count,
                       stream, "fill");
    case DType::F64:
      return launch<1>(false, Fill<double>{static_cast<double*>(args.y), value}, 1, args.count, stream, "fill");
    case DType::BF16:
      return launch<8>(aligned16(args.y), Fill<bf16>{static_cast<bf16*>(args.y), __float2bfloat16_rn(static_cast<float>(value))}, 1,
                       args.count, stream, "fill");
    case DType::F16:
      return launch<8>(aligned16(args.y), Fill<fp16>{static_cast<fp16*>(args.y), __float2half_rn(static_cast<float>(value))}, 1,
                       args.count, stream, "fill");
    default:
      break;
  }
  DELTRON_CHECK(false, "fill has no CUDA form for ", dtype_name(args.dtype));
}

void add(const AddArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "add", [&](auto s) {
    using S = decltype(s);
    launch<kVector<S>>(aligned16(args.a) && aligned16(args.b) && aligned16(args.y),
                       Add<S>{static_cast<const S*>(args.a), static_cast<const S*>(args.b), static_cast<S*>(args.y)}, 1, args.count,
                       stream, "add");
  });
}

void accumulate(const AccumulateArgs& given, const StreamHandle& stream) {
  AccumulateArgs args = given;
  flatten(args);
  with_storage(args.x_dtype, "accumulate", [&](auto x) {
    with_storage(args.y_dtype, "accumulate", [&](auto y) {
      using X = decltype(x);
      using Y = decltype(y);
      launch<kPairVector<X, Y>>(aligned16(args.x, args.x_dtype) && aligned16(args.y, args.y_dtype),
                                Accumulate<X, Y>{args.x, args.y, static_cast<Compute<Y>>(args.scale)}, args.rows, args.cols, stream,
                                "accumulate");
    });
  });
}

void scale(const ScaleArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "scale", [&](auto s) {
    using S = decltype(s);
    launch<kVector<S>>(aligned16(args.y), Scale<S>{static_cast<S*>(args.y), static_cast<Compute<S>>(args.scale)}, 1, args.count,
                       stream, "scale");
  });
}

void dropout_add(const DropoutAddArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.rng.drop_probability >= 0 && args.rng.drop_probability < 1, "drop probability ", args.rng.drop_probability);
  with_storage(args.dtype, "dropout_add", [&](auto s) {
    using S = decltype(s);
    const bool drops = args.rng.drop_probability > 0;
    Dropout<S> function{static_cast<const S*>(args.x),
                        static_cast<const S*>(args.residual),
                        static_cast<S*>(args.y),
                        args.cols,
                        args.rng,
                        drops ? dropout_threshold(args.rng.drop_probability) : 0,
                        static_cast<Compute<S>>(1.0 / (1.0 - args.rng.drop_probability))};
    const bool aligned = aligned16(args.x) && aligned16(args.y) && (args.residual == nullptr || aligned16(args.residual));
    const std::int64_t rows = drops ? args.rows : 1, cols = drops ? args.cols : args.rows * args.cols;
    function.cols = cols;
    launch<kVector<S>>(aligned && (rows == 1 || cols % kVector<S> == 0), function, rows, cols, stream, "dropout_add");
  });
}

void sigmoid_gate_forward(const SigmoidGateForwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "sigmoid_gate", [&](auto s) {
    using S = decltype(s);
    launch<kVector<S>>(aligned16(args.x, args.dtype) && aligned16(args.gate, args.dtype) && aligned16(args.y, args.dtype),
                       GateForward<S>{args}, args.rows, args.cols, stream, "sigmoid_gate");
  });
}

void sigmoid_gate_backward(const SigmoidGateBackwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "sigmoid_gate", [&](auto s) {
    using S = decltype(s);
    const bool aligned = aligned16(args.x, args.dtype) && aligned16(args.gate, args.dtype) && aligned16(args.dy, args.dtype) &&
                         aligned16(args.dx, args.dtype) && aligned16(args.dgate, args.dtype);
    launch<kVector<S>>(aligned, GateBackward<S>{args}, args.rows, args.cols, stream, "sigmoid_gate");
  });
}

}  // namespace deltron::kernels::cuda
