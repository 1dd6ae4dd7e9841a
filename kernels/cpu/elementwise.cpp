// Conversion, fill, sums, scaling and the sigmoid gate on the CPU. Memory-bound: one pass, vectors, rows cut at fixed places.
#include "kernels/elementwise.h"

#include <cstring>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {  // names of one family stay in its file

template <class X, class Y>
void convert_rows(const ConvertArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const X* x = static_cast<const X*>(args.x.data) + row * args.x.row_stride;
    Y* y = static_cast<Y*>(args.y.data) + row * args.y.row_stride;
    if constexpr (std::is_same_v<X, Y>) {
      std::memmove(y, x, static_cast<std::size_t>(args.cols) * sizeof(X));
    } else if constexpr (std::is_same_v<Compute<X>, Compute<Y>>) {
      const Tag<Compute<X>> d;
      for_lanes(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR { store(load(d, x + i, part), d, y + i, part); });
    } else {  // fp64 against the others: tests and golden files only
      for (std::int64_t i = 0; i < args.cols; ++i) y[i] = narrow<Y>(static_cast<Compute<Y>>(widen(x[i])));
    }
  }
}

void convert_all(const ConvertArgs& args, const StreamHandle& stream) {
  with_storage(args.x_dtype, "convert", [&](auto x) {
    with_storage(args.y_dtype, "convert", [&](auto y) {
      parallel_for(*stream.pool, args.rows, row_grain(args.cols),
                   [&](std::int64_t begin, std::int64_t end) { convert_rows<decltype(x), decltype(y)>(args, begin, end); });
    });
  });
}

template <class S>
void fill_range(const FillArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const Tag<C> d;
  S* y = static_cast<S*>(args.y) + begin;
  const auto value = hn::Set(d, static_cast<C>(args.value));
  for_lanes(d, end - begin, [&](std::int64_t i, auto part) HWY_ATTR { store(value, d, y + i, part); });
}

void fill_all(const FillArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "fill", [&](auto s) {
    parallel_for(*stream.pool, args.count, kPartElements,
                 [&](std::int64_t begin, std::int64_t end) { fill_range<decltype(s)>(args, begin, end); });
  });
}

template <class S>
void add_range(const AddArgs& args, std::int64_t begin, std::int64_t end) {
  const Tag<Compute<S>> d;
  const S* a = static_cast<const S*>(args.a) + begin;
  const S* b = static_cast<const S*>(args.b) + begin;
  S* y = static_cast<S*>(args.y) + begin;
  for_lanes(d, end - begin,
            [&](std::int64_t i, auto part) HWY_ATTR { store(hn::Add(load(d, a + i, part), load(d, b + i, part)), d, y + i, part); });
}

void add_all(const AddArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "add", [&](auto s) {
    parallel_for(*stream.pool, args.count, kPartElements,
                 [&](std::int64_t begin, std::int64_t end) { add_range<decltype(s)>(args, begin, end); });
  });
}

template <class X, class Y>
void accumulate_rows(const AccumulateArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<Y>;
  for (std::int64_t row = begin; row < end; ++row) {
    const X* x = static_cast<const X*>(args.x.data) + row * args.x.row_stride;
    Y* y = static_cast<Y*>(args.y.data) + row * args.y.row_stride;
    if constexpr (std::is_same_v<Compute<X>, C>) {
      const Tag<C> d;
      const auto factor = hn::Set(d, static_cast<C>(args.scale));
      for_lanes(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR {
        store(hn::MulAdd(load(d, x + i, part), factor, load(d, y + i, part)), d, y + i, part);
      });
    } else {
      const C factor = static_cast<C>(args.scale);
      for (std::int64_t i = 0; i < args.cols; ++i) y[i] = narrow<Y>(static_cast<C>(widen(x[i])) * factor + widen(y[i]));
    }
  }
}

void accumulate_all(const AccumulateArgs& args, const StreamHandle& stream) {
  with_storage(args.x_dtype, "accumulate", [&](auto x) {
    with_storage(args.y_dtype, "accumulate", [&](auto y) {
      parallel_for(*stream.pool, args.rows, row_grain(args.cols),
                   [&](std::int64_t begin, std::int64_t end) { accumulate_rows<decltype(x), decltype(y)>(args, begin, end); });
    });
  });
}

template <class S>
void scale_range(const ScaleArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const Tag<C> d;
  S* y = static_cast<S*>(args.y) + begin;
  const auto factor = hn::Set(d, static_cast<C>(args.scale));
  for_lanes(d, end - begin, [&](std::int64_t i, auto part) HWY_ATTR { store(hn::Mul(load(d, y + i, part), factor), d, y + i, part); });
}

void scale_all(const ScaleArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "scale", [&](auto s) {
    parallel_for(*stream.pool, args.count, kPartElements,
                 [&](std::int64_t begin, std::int64_t end) { scale_range<decltype(s)>(args, begin, end); });
  });
}

template <class S>
void gate_forward_rows(const SigmoidGateForwardArgs& args, std::int64_t begin, std::int64_t end) {
  const Tag<Compute<S>> d;
  for (std::int64_t row = begin; row < end; ++row) {
    const S* x = static_cast<const S*>(args.x.data) + row * args.x.row_stride;
    const S* gate = static_cast<const S*>(args.gate.data) + row * args.gate.row_stride;
    S* y = static_cast<S*>(args.y.data) + row * args.y.row_stride;
    for_lanes(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Mul(load(d, x + i, part), sigmoid(d, load(d, gate + i, part))), d, y + i, part);
    });
  }
}

void gate_forward_all(const SigmoidGateForwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "sigmoid_gate", [&](auto s) {
    parallel_for(*stream.pool, args.rows, row_grain(args.cols),
                 [&](std::int64_t begin, std::int64_t end) { gate_forward_rows<decltype(s)>(args, begin, end); });
  });
}

template <class S>
void gate_backward_rows(const SigmoidGateBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const Tag<C> d;
  const auto one = hn::Set(d, static_cast<C>(1));
  for (std::int64_t row = begin; row < end; ++row) {
    const S* x = static_cast<const S*>(args.x.data) + row * args.x.row_stride;
    const S* gate = static_cast<const S*>(args.gate.data) + row * args.gate.row_stride;
    const S* dy = static_cast<const S*>(args.dy.data) + row * args.dy.row_stride;
    S* dx = static_cast<S*>(args.dx.data) + row * args.dx.row_stride;
    S* dgate = static_cast<S*>(args.dgate.data) + row * args.dgate.row_stride;
    for_lanes(d, args.cols, [&](std::int64_t i, auto part) HWY_ATTR {
      const auto s = sigmoid(d, load(d, gate + i, part));
      const auto down = hn::Mul(load(d, dy + i, part), s);
      const auto gate_slope = hn::Mul(hn::Mul(down, load(d, x + i, part)), hn::Sub(one, s));
      store(down, d, dx + i, part);
      store(gate_slope, d, dgate + i, part);
    });
  }
}

void gate_backward_all(const SigmoidGateBackwardArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "sigmoid_gate", [&](auto s) {
    parallel_for(*stream.pool, args.rows, row_grain(args.cols),
                 [&](std::int64_t begin, std::int64_t end) { gate_backward_rows<decltype(s)>(args, begin, end); });
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(convert_all);
HWY_EXPORT(fill_all);
HWY_EXPORT(add_all);
HWY_EXPORT(accumulate_all);
HWY_EXPORT(scale_all);
HWY_EXPORT(gate_forward_all);
HWY_EXPORT(gate_backward_all);

void convert(const ConvertArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(convert_all)(args, stream); }

void fill(const FillArgs& args, const StreamHandle& stream) {
  if (args.value == 0) {  // every dtype: all bits zero
    const std::int64_t bytes = args.count * static_cast<std::int64_t>(dtype_size(args.dtype));
    parallel_for(*stream.pool, bytes, 4 * kPartElements, [&](std::int64_t begin, std::int64_t end) {
      std::memset(static_cast<char*>(args.y) + begin, 0, static_cast<std::size_t>(end - begin));
    });
    return;
  }
  HWY_DYNAMIC_DISPATCH(fill_all)(args, stream);
}

void add(const AddArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(add_all)(args, stream); }
void accumulate(const AccumulateArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(accumulate_all)(args, stream); }
void scale(const ScaleArgs& args, const StreamHandle& stream) { HWY_DYNAMIC_DISPATCH(scale_all)(args, stream); }
void sigmoid_gate_forward(const SigmoidGateForwardArgs& args, const StreamHandle& stream) {
  HWY_DYNAMIC_DISPATCH(gate_forward_all)(args, stream);
}
void sigmoid_gate_backward(const SigmoidGateBackwardArgs& args, const StreamHandle& stream) {
  HWY_DYNAMIC_DISPATCH(gate_backward_all)(args, stream);
}

}  // namespace deltron::kernels::cpu
#endif
