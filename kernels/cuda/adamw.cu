// AdamW and SGD on cuda. Factors are formed in fp64 once a call; the clipping factor and the skip flag are read on the device, so
// that the host never waits for them.
#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

template <class C, int N>
__device__ __forceinline__ void rewrite_weight(const C (&value)[N], void* weight, DType dtype, std::int64_t i) {
  if (weight == nullptr) return;
  if constexpr (std::is_same_v<C, double>) {
    store(value, static_cast<double*>(weight) + i);
  } else if (dtype == DType::F32) {
    store(value, static_cast<float*>(weight) + i);
  } else if (dtype == DType::BF16) {
    store(value, static_cast<bf16*>(weight) + i);
  } else {
    store(value, static_cast<fp16*>(weight) + i);
  }
}

template <class C>
struct Adamw {
  AdamwArgs a;
  C beta1, beta2, rest1, rest2, decay, rate, root, epsilon;
  template <int N>
  __device__ void at(std::int64_t, std::int64_t i) const {
    if (a.skip_flag != nullptr && *a.skip_flag != 0) return;
    const C scale = a.grad_scale == nullptr ? C(1) : static_cast<C>(*a.grad_scale);
    C w[N], g[N], m[N], v[N];
    load(static_cast<const C*>(a.grad) + i, g);
    load(static_cast<const C*>(a.exp_avg) + i, m);
    load(static_cast<const C*>(a.exp_avg_sq) + i, v);
    load(static_cast<const C*>(a.master) + i, w);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const C gradient = g[j] * scale;
      m[j] = fma(beta1, m[j], rest1 * gradient);
      v[j] = fma(beta2, v[j], rest2 * (gradient * gradient));
      w[j] = fma(-decay, w[j], w[j]);
      w[j] -= rate * m[j] / fma(sqrt(v[j]), root, epsilon);
    }
    store(m, static_cast<C*>(a.exp_avg) + i);
    store(v, static_cast<C*>(a.exp_avg_sq) + i);
    store(w, static_cast<C*>(a.master) + i);
    rewrite_weight(w, a.weight, a.weight_dtype, i);
  }
};

template <class C>
struct Sgd {
  SgdArgs a;
  template <int N>
  __device__ void at(std::int64_t, std::int64_t i) const {
    if (a.skip_flag != nullptr && *a.skip_flag != 0) return;
    const C scale = a.grad_scale == nullptr ? C(1) : static_cast<C>(*a.grad_scale);
    const C decay = static_cast<C>(a.weight_decay), rate = static_cast<C>(a.lr);
    C w[N], g[N];
    load(static_cast<const C*>(a.grad) + i, g);
    load(static_cast<const C*>(a.master) + i, w);
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = fma(-rate, fma(decay, w[j], g[j] * scale), w[j]);
    store(w, static_cast<C*>(a.master) + i);
    rewrite_weight(w, a.weight, a.weight_dtype, i);
  }
};

template <class C>
Adamw<C> make(const AdamwArgs& args) {
  const double step = static_cast<double>(args.step);
  const double correction1 = 1.0 - std::pow(args.beta1, step), correction2 = 1.0 - std::pow(args.beta2, step);
  return Adamw<C>{args,
                  static_cast<C>(args.beta1),
                  static_cast<C>(args.beta2),
                  static_cast<C>(1.0 - args.beta1),
                  static_cast<C>(1.0 - args.beta2),
                  static_cast<C>(args.lr * args.weight_decay),
                  static_cast<C>(args.lr / correction1),
                  static_cast<C>(1.0 / std::sqrt(correction2)),
                  static_cast<C>(args.epsilon)};
}

template <class Args>
void check_dtypes(const Args& args) {
  DELTRON_CHECK(args.dtype == DType::F32 || args.dtype == DType::F64, "optimizer state is fp32 or fp64, not ",
                dtype_name(args.dtype));
  if (args.weight != nullptr) check_parameter(args.dtype, args.weight_dtype, "optimizer");
}

}  // namespace

void adamw(const AdamwArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.step, 1, "AdamW counts its steps from 1");
  check_dtypes(args);
  if (args.dtype == DType::F64) return launch_matrix<1>(make<double>(args), 1, args.count, stream, "adamw");
  const bool aligned = aligned16(args.master) && aligned16(args.grad) && aligned16(args.exp_avg) && aligned16(args.exp_avg_sq) &&
                       (args.weight == nullptr || aligned16(args.weight));
  aligned ? launch_matrix<4>(make<float>(args), 1, args.count, stream, "adamw")
          : launch_matrix<1>(make<float>(args), 1, args.count, stream, "adamw");
}

void sgd(const SgdArgs& args, const StreamHandle& stream) {
  check_dtypes(args);
  if (args.dtype == DType::F64) return launch_matrix<1>(Sgd<double>{args}, 1, args.count, stream, "sgd");
  const bool aligned = aligned16(args.master) && aligned16(args.grad) && (args.weight == nullptr || aligned16(args.weight));
  aligned ? launch_matrix<4>(Sgd<float>{args}, 1, args.count, stream, "sgd")
          : launch_matrix<1>(Sgd<float>{args}, 1, args.count, stream, "sgd");
}

}  // namespace deltron::kernels::cuda
