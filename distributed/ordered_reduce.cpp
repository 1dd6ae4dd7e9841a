// See ordered_reduce.h.
#include "distributed/ordered_reduce.h"

#include <algorithm>

#include "src/base/bfloat16.h"
#include "src/base/check.h"

namespace deltron {
namespace {

float widened(bfloat16 value) { return to_float(value); }
float widened(float16 value) { return to_float(value); }
template <class T>
T widened(T value) {
  return value;
}

void round_to(float value, bfloat16& to) { to = to_bfloat16(value); }
void round_to(float value, float16& to) { to = to_float16(value); }
template <class T>
void round_to(T value, T& to) {
  to = value;
}

template <class T>
void reduce(const std::vector<const void*>& operands, ReduceOp op, std::int64_t count, void* out) {
  T* to = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) {
    auto value = widened(static_cast<const T*>(operands[0])[i]);
    for (std::size_t rank = 1; rank < operands.size(); ++rank) {
      const auto other = widened(static_cast<const T*>(operands[rank])[i]);
      value = op == ReduceOp::Sum ? value + other : std::max(value, other);
    }
    round_to(value, to[i]);
  }
}

}  // namespace

void ordered_reduce(const std::vector<const void*>& operands, DType dtype, ReduceOp op, std::int64_t count, void* out) {
  switch (dtype) {
    case DType::F32: return reduce<float>(operands, op, count, out);
    case DType::F64: return reduce<double>(operands, op, count, out);
    case DType::BF16: return reduce<bfloat16>(operands, op, count, out);
    case DType::F16: return reduce<float16>(operands, op, count, out);
    case DType::I32: return reduce<std::int32_t>(operands, op, count, out);
    case DType::I64: return reduce<std::int64_t>(operands, op, count, out);
    default: DELTRON_CHECK(false, "no sums over ranks in ", dtype_name(dtype));
  }
}

}  // namespace deltron
