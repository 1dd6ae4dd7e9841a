// Depthwise causal convolution and SiLU on cuda: a thread owns a few channels and walks a strip of tokens with the taps in
// registers. Backward recomputes the value before SiLU, walks a little past its strip for dx, and sums dweight by strips. Four taps
// with SiLU on aligned rows, the usual case, take the kernels of conv_stream.cuh instead.
#include "kernels/causal_conv1d.h"

#include "kernels/cuda/conv_stream.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kMostTaps = 16;
constexpr int kThreads = 64;

template <class C, int kTaps, int N>
__device__ __forceinline__ void load_taps(const void* weight, DType dtype, int kernel, std::int64_t channel, C (&w)[kTaps][N]) {
#pragma unroll
  for (int back = 0; back < kTaps; ++back) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      C one[1] = {C(0)};
      if (back < kernel) load_parameter(weight, dtype, (channel + j) * kernel + (kernel - 1 - back), one);
      w[back][j] = one[0];
    }
  }
}

// x of the tokens before t, window[back] = x[t - back]; entry 0 is filled by the walk.
template <class S, class C, int kTaps, int N>
__device__ __forceinline__ void load_window(const S* x, std::int64_t stride, std::int64_t t, std::int64_t before,
                                            C (&window)[kTaps][N]) {
#pragma unroll
  for (int back = 0; back < kTaps; ++back) {
#pragma unroll
    for (int j = 0; j < N; ++j) window[back][j] = C(0);
  }
  // As the walk shifts before it loads, what is `back` before t sits one place lower now.
#pragma unroll
  for (int back = 1; back < kTaps; ++back) {
    if (back <= before) load(x + (t - back) * stride, window[back - 1]);
  }
}

template <class S, int kTaps, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(CausalConv1dForwardArgs a, std::int64_t strip) {
  using C = Compute<S>;
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (channel >= a.channels) return;
  const std::int64_t begin = blockIdx.x * strip, end = begin + strip < a.tokens ? begin + strip : a.tokens;
  C w[kTaps][N], window[kTaps][N], z[N];
  load_taps(a.weight, a.weight_dtype, static_cast<int>(a.kernel), channel, w);
  const S* x = static_cast<const S*>(a.x.data) + channel;
  S* y = static_cast<S*>(a.y.data) + channel;
  Reach reach(a.documents, begin);
  load_window(x, a.x.row_stride, begin, reach.before(begin), window);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t before = capped(reach.before(t), a.kernel);
    shift(window);
    load(x + t * a.x.row_stride, window[0]);
    convolve(w, window, before, z);
    if (a.silu) {
#pragma unroll
      for (int j = 0; j < N; ++j) z[j] = silu(z[j]);
    }
    store(z, y + t * a.y.row_stride);
  }
}

template <class S, int kTaps, int N>
__global__ void __launch_bounds__(kThreads) backward_kernel(CausalConv1dBackwardArgs a, std::int64_t strip) {
  using C = Compute<S>;
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (channel >= a.channels) return;
  const int kernel = static_cast<int>(a.kernel);
  const std::int64_t begin = blockIdx.x * strip, end = begin + strip < a.tokens ? begin + strip : a.tokens;
  C w[kTaps][N], window[kTaps][N], dw[kTaps][N] = {}, dx[kTaps][N] = {}, dz[N];
  load_taps(a.weight, a.weight_dtype, kernel, channel, w);
  const S* x = static_cast<const S*>(a.x.data) + channel;
  const S* dy = static_cast<const S*>(a.dy.data) + channel;
  S* to = static_cast<S*>(a.dx.data) + channel;
  Reach reach(a.documents, begin);
  load_window(x, a.x.row_stride, begin, reach.before(begin), window);
  // dx[back] gathers the gradient of token t - back; a token is complete kernel - 1 tokens later.
  for (std::int64_t t = begin; t < end + kernel - 1; ++t) {
    shift(dx);
#pragma unroll
    for (int j = 0; j < N; ++j) dx[0][j] = C(0);
    if (t < a.tokens) {
      const std::int64_t before = capped(reach.before(t), a.kernel);
      shift(window);
      load(x + t * a.x.row_stride, window[0]);
      load(dy + t * a.dy.row_stride, dz);
      if (a.silu) {
        C z[N];
        convolve(w, window, before, z);
#pragma unroll
        for (int j = 0; j < N; ++j) dz[j] *= silu_derivative(z[j], sigmoid(z[j]));
      }
#pragma unroll
      for (int back = 0; back < kTaps; ++back) {
        if (back > before) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          dx[back][j] = fma(w[back][j], dz[j], dx[back][j]);
          if (t < end) dw[back][j] = fma(dz[j], window[back][j], dw[back][j]);
        }
      }
    }
    const std::int64_t done = t - (kernel - 1);
    if (done < begin) continue;
#pragma unroll
    for (int back = 0; back < kTaps; ++back) {  // back == kernel - 1, with a constant index
      if (back == kernel - 1) store(dx[back], to + done * a.dx.row_stride);
    }
  }
  if (a.dweight == nullptr) return;
  C* partial = static_cast<C*>(a.workspace.data) + static_cast<std::int64_t>(blockIdx.x) * kernel * a.channels + channel;
#pragma unroll
  for (int back = 0; back < kTaps; ++back) {
    if (back >= kernel) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) partial[(kernel - 1 - back) * a.channels + j] = dw[back][j];
  }
}

template <class Args>
void check_conv(const Args& args) {
  DELTRON_CHECK(args.kernel >= 1 && args.kernel <= kMostTaps, "causal_conv1d takes kernels of 1 to ", kMostTaps, ", not ",
                args.kernel);
  DELTRON_CHECK(args.tokens == 0 || args.documents.count > 0, "causal_conv1d needs documents");
  const std::int64_t* offsets = args.documents.host();
  DELTRON_CHECK(args.tokens == 0 || (offsets[0] == 0 && offsets[args.documents.count] == args.tokens),
                "cu_seqlens must run from 0 to the number of tokens, ", args.tokens);
  check_parameter(args.dtype, args.weight_dtype, "causal_conv1d");
}

// f(taps, vector) as compile-time constants: the usual kernel of up to 4 taps moves 8 bytes and more, others one channel.
template <class S, class F>
void with_form(std::int64_t kernel, bool aligned, const F& f) {
  using Four = std::integral_constant<int, 4>;
  using One = std::integral_constant<int, 1>;
  if (kernel > 4) return f(std::integral_constant<int, kMostTaps>{}, One{});
  if constexpr (!std::is_same_v<S, double>) {
    if (aligned) return f(Four{}, Four{});
  }
  f(Four{}, One{});
}

bool aligned8(const void* data, std::int64_t stride, DType dtype) {
  const std::int64_t bytes = 4 * static_cast<std::int64_t>(dtype_size(dtype));
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0 && stride % 4 == 0;
}

// Whether the kernels of conv_stream.cuh take the call; views are all that it reads and writes by rows.
template <class Args, class... Views>
bool streams(const Args& args, const Views&... views) {
  const bool fits = args.kernel == kStreamTaps && args.silu && args.dtype != DType::F64 && aligned16(args.weight) &&
                    args.tokens < (1 << 30) && args.channels < (1 << 24) &&
                    args.channels * static_cast<std::int64_t>(dtype_size(args.dtype)) % 16 == 0;
  return fits && (aligned16(views, args.dtype) && ...);
}

}  // namespace

void causal_conv1d_forward(const CausalConv1dForwardArgs& args, const StreamHandle& stream) {
  check_conv(args);
  if (args.tokens <= 0 || args.channels <= 0) return;
  const std::int64_t strip = strip_tokens(args.tokens);
  with_storage(args.dtype, "causal_conv1d", [&](auto s) {
    using S = decltype(s);
    if constexpr (!std::is_same_v<S, double>) {
      if (streams(args, args.x, args.y)) {
        const int tiles = stream_tiles<S>(args.channels);
        conv_stream_forward<S>
            <<<static_cast<unsigned>(tiles * stream_blocks(args.tokens, kShortStrip)), kStreamThreads, 0, native(stream)>>>(
                args, kShortStrip, tiles);
        return;
      }
    }
    const bool aligned = args.channels % 4 == 0 && aligned8(args.x.data, args.x.row_stride, args.dtype) &&
                         aligned8(args.y.data, args.y.row_stride, args.dtype);
    with_form<S>(args.kernel, aligned, [&](auto taps, auto n) {
      constexpr int kTaps = decltype(taps)::value, kN = decltype(n)::value;
      const dim3 grid(static_cast<unsigned>(ceil_div(args.tokens, strip)),
                      static_cast<unsigned>(ceil_div(args.channels, kThreads * kN)));
      forward_kernel<S, kTaps, kN><<<grid, kThreads, 0, native(stream)>>>(args, strip);
    });
  });
  check_launch("causal_conv1d_forward");
}

std::int64_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardArgs& args, const StreamHandle&) {
  return ceil_div(args.tokens, strip_tokens(args.tokens)) * args.kernel * args.channels *
         static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void causal_conv1d_backward(const CausalConv1dBackwardArgs& args, const StreamHandle& stream) {
  check_conv(args);
  if (args.tokens <= 0 || args.channels <= 0) return;
  DELTRON_CHECK_GE(args.workspace.bytes, causal_conv1d_backward_workspace_bytes(args, stream),
                   "workspace of causal_conv1d_backward");
  const std::int64_t strip = strip_tokens(args.tokens), strips = ceil_div(args.tokens, strip);
  with_storage(args.dtype, "causal_conv1d", [&](auto s) {
    using S = decltype(s);
    if constexpr (!std::is_same_v<S, double>) {
      if (streams(args, args.x, args.dy, args.dx)) {
        const int tiles = stream_tiles<S>(args.channels), strip = backward_strip(args.tokens);
        const std::int64_t blocks = stream_blocks(args.tokens, strip);
        conv_stream_backward<S><<<static_cast<unsigned>(tiles * blocks), kStreamThreads, 0, native(stream)>>>(args, strip, tiles);
        check_launch("causal_conv1d_backward");
        if (args.dweight != nullptr)
          add_partials<float>(args.workspace.data, blocks, args.kernel * args.channels, args.kernel, args.dweight, stream);
        return;
      }
    }
    const bool aligned = args.channels % 4 == 0 && aligned8(args.x.data, args.x.row_stride, args.dtype) &&
                         aligned8(args.dy.data, args.dy.row_stride, args.dtype) &&
                         aligned8(args.dx.data, args.dx.row_stride, args.dtype);
    with_form<S>(args.kernel, aligned, [&](auto taps, auto n) {
      constexpr int kTaps = decltype(taps)::value, kN = decltype(n)::value;
      const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(ceil_div(args.channels, kThreads * kN)));
      backward_kernel<S, kTaps, kN><<<grid, kThreads, 0, native(stream)>>>(args, strip);
    });
    check_launch("causal_conv1d_backward");
    if (args.dweight != nullptr)
      add_partials<Compute<S>>(args.workspace.data, strips, args.kernel * args.channels, args.kernel, args.dweight, stream);
  });
}

}  // namespace deltron::kernels::cuda
