// Rotary embedding on cuda: a block a token; sines and cosines in fp64, once a token and then used by all its heads.
#include "kernels/rope.h"

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr std::int64_t kMostRotaryPairs = 512;

template <class S>
__global__ void rope_kernel(RopeArgs a) {
  using C = Compute<S>;
  __shared__ C cosine[kMostRotaryPairs], sine[kMostRotaryPairs];
  const std::int64_t token = blockIdx.x;
  const int pairs = static_cast<int>(a.rotary_dim / 2);
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += static_cast<int>(blockDim.x)) {
    const double frequency = pow(a.theta, -2.0 * i / static_cast<double>(a.rotary_dim));
    double s, c;
    sincos(static_cast<double>(a.positions[token]) * frequency, &s, &c);
    cosine[i] = static_cast<C>(c);
    sine[i] = static_cast<C>(a.inverse ? -s : s);
  }
  __syncthreads();
  const int rest = static_cast<int>(a.dim) - 2 * pairs, work = pairs + rest;  // a pair, or one value that is copied
  const int all = static_cast<int>(a.heads) * work;
  for (int item = static_cast<int>(threadIdx.x); item < all; item += static_cast<int>(blockDim.x)) {
    const int head = item / work, i = item % work;
    const S* x = static_cast<const S*>(a.x.data) + token * a.x.token_stride + head * a.x.head_stride;
    S* y = static_cast<S*>(a.y.data) + token * a.y.token_stride + head * a.y.head_stride;
    if (i < pairs) {
      const C low = widen(x[i]), high = widen(x[pairs + i]), c = cosine[i], s = sine[i];
      y[i] = narrow<S>(low * c - high * s);
      y[pairs + i] = narrow<S>(low * s + high * c);
    } else if (x != y) {
      y[pairs + i] = x[pairs + i];
    }
  }
}

}  // namespace

void rope(const RopeArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.dim, "rope: rotary dim ", args.rotary_dim, " of ", args.dim);
  DELTRON_CHECK_LE(args.rotary_dim / 2, kMostRotaryPairs, "rope: pairs");
  DELTRON_CHECK(args.x.sequence_stride == 0 && args.y.sequence_stride == 0, "rope takes flat tokens");
  if (args.tokens <= 0) return;
  with_storage(args.dtype, "rope",
               [&](auto s) { rope_kernel<decltype(s)><<<static_cast<unsigned>(args.tokens), 128, 0, native(stream)>>>(args); });
  check_launch("rope");
}

}  // namespace deltron::kernels::cuda
