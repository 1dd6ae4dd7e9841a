// See host_array.h. Elements go through memcpy: data in a mapped file need not be aligned.
#include "src/checkpoint/host_array.h"

#include <cstring>
#include <utility>

#include "src/base/bfloat16.h"
#include "src/base/check.h"

namespace deltron {
namespace {

template <class T>
T load(const std::uint8_t* place) {
  T value;
  std::memcpy(&value, place, sizeof(T));
  return value;
}

template <class T>
void store(std::uint8_t* place, T value) {
  std::memcpy(place, &value, sizeof(T));
}

double load_element(DType dtype, const std::uint8_t* place) {
  switch (dtype) {
    case DType::F32:
      return load<float>(place);
    case DType::F64:
      return load<double>(place);
    case DType::BF16:
      return to_float(load<bfloat16>(place));
    case DType::F16:
      return to_float(load<float16>(place));
    case DType::I32:
      return load<std::int32_t>(place);
    case DType::I64:
      return static_cast<double>(load<std::int64_t>(place));
    case DType::U8:
      return load<std::uint8_t>(place);
    case DType::U16:
      return load<std::uint16_t>(place);
    case DType::Bool:
      return load<std::uint8_t>(place) != 0 ? 1.0 : 0.0;
  }
  return 0;
}

void store_element(DType dtype, std::uint8_t* place, double value) {
  switch (dtype) {
    case DType::F32:
      return store(place, static_cast<float>(value));
    case DType::F64:
      return store(place, value);
    case DType::BF16:
      return store(place, to_bfloat16(static_cast<float>(value)));
    case DType::F16:
      return store(place, to_float16(static_cast<float>(value)));
    case DType::I32:
      return store(place, static_cast<std::int32_t>(value));
    case DType::I64:
      return store(place, static_cast<std::int64_t>(value));
    case DType::U8:
      return store(place, static_cast<std::uint8_t>(value));
    case DType::U16:
      return store(place, static_cast<std::uint16_t>(value));
    case DType::Bool:
      return store(place, static_cast<std::uint8_t>(value != 0));
  }
}

}  // namespace

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

HostArray make_array(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  HostArray array{std::move(name), dtype, std::move(shape), {}};
  array.bytes.resize(static_cast<std::size_t>(element_count(array.shape)) * dtype_size(dtype));
  return array;
}

HostArray copy_of(const HostView& view) {
  return HostArray{view.name, view.dtype, view.shape, std::vector<std::uint8_t>(view.data, view.data + view.bytes)};
}

std::vector<double> to_doubles(const HostView& view) {
  const std::size_t size = dtype_size(view.dtype);
  std::vector<double> values(view.bytes / size);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_element(view.dtype, view.data + i * size);
  return values;
}

HostArray from_doubles(std::string name, DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& values) {
  HostArray array = make_array(std::move(name), dtype, std::move(shape));
  DELTRON_CHECK_EQ(array.bytes.size(), values.size() * dtype_size(dtype), array.name);
  for (std::size_t i = 0; i < values.size(); ++i) store_element(dtype, array.bytes.data() + i * dtype_size(dtype), values[i]);
  return array;
}

HostArray converted(const HostView& view, DType dtype) {
  if (view.dtype == dtype) return copy_of(view);
  HostArray array = make_array(view.name, dtype, view.shape);
  const std::size_t from = dtype_size(view.dtype);
  const std::size_t to = dtype_size(dtype);
  for (std::size_t i = 0; i * from < view.bytes; ++i) {
    store_element(dtype, array.bytes.data() + i * to, load_element(view.dtype, view.data + i * from));
  }
  return array;
}

}  // namespace deltron
