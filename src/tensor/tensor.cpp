// See tensor.h.
#include "src/tensor/tensor.h"

#include "src/base/bfloat16.h"
#include "src/tensor/context.h"

namespace deltron {
namespace {

std::vector<std::int64_t> contiguous_strides(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = step;
    step *= shape[dim];
  }
  return strides;
}

double load_double(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::F32: return static_cast<const float*>(data)[index];
    case DType::F64: return static_cast<const double*>(data)[index];
    case DType::BF16: return to_float(static_cast<const bfloat16*>(data)[index]);
    case DType::F16: return to_float(static_cast<const float16*>(data)[index]);
    case DType::I32: return static_cast<const std::int32_t*>(data)[index];
    case DType::I64: return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
    case DType::U16: return static_cast<const std::uint16_t*>(data)[index];
    case DType::U8:
    case DType::Bool: return static_cast<const std::uint8_t*>(data)[index];
  }
  return 0;
}

void store_double(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::F32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case DType::F64: static_cast<double*>(data)[index] = value; break;
    case DType::BF16: static_cast<bfloat16*>(data)[index] = to_bfloat16(static_cast<float>(value)); break;
    case DType::F16: static_cast<float16*>(data)[index] = to_float16(static_cast<float>(value)); break;
    case DType::I32: static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value); break;
    case DType::I64: static_cast<std::int64_t*>(data)[index] = static_cast<std::int64_t>(value); break;
    case DType::U16: static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(value); break;
    case DType::U8:
    case DType::Bool: static_cast<std::uint8_t*>(data)[index] = static_cast<std::uint8_t>(value); break;
  }
}

}  // namespace

std::int64_t shape_count(const Shape& shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

Tensor::Tensor(std::shared_ptr<Storage> storage, DType dtype, Shape shape, std::vector<std::int64_t> strides, std::int64_t offset)
    : storage_(std::move(storage)), dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)), offset_(offset) {}

Tensor Tensor::empty(Context& ctx, Shape shape, DType dtype, const char* name, MemoryTag tag) {
  const std::int64_t bytes = shape_count(shape) * static_cast<std::int64_t>(dtype_size(dtype));
  auto storage = std::make_shared<Storage>(ctx.memory(), ctx.device(), bytes, tag, ctx.scope(), name);
  storage->set_made_for(dtype, shape);
  std::vector<std::int64_t> strides = contiguous_strides(shape);
  return Tensor(std::move(storage), dtype, std::move(shape), std::move(strides), 0);
}

Tensor Tensor::zeros(Context& ctx, Shape shape, DType dtype, const char* name, MemoryTag tag) {
  Tensor tensor = empty(ctx, std::move(shape), dtype, name, tag);
  ctx.set_bytes(tensor.data(), 0, tensor.bytes());
  return tensor;
}

std::int64_t Tensor::size(int dim) const {
  if (dim < 0) dim += rank();
  DELTRON_CHECK(dim >= 0 && dim < rank(), "dimension ", dim, " of ", shape_text(shape_));
  return shape_[static_cast<std::size_t>(dim)];
}

std::int64_t Tensor::stride(int dim) const {
  if (dim < 0) dim += rank();
  DELTRON_CHECK(dim >= 0 && dim < rank(), "dimension ", dim, " of ", shape_text(shape_));
  return strides_[static_cast<std::size_t>(dim)];
}

bool Tensor::is_contiguous() const {
  std::int64_t step = 1;
  for (int dim = rank() - 1; dim >= 0; --dim) {
    if (size(dim) != 1 && stride(dim) != step) return false;
    step *= size(dim);
  }
  return true;
}

void* Tensor::data() const {
  DELTRON_CHECK(defined(), "data of an undefined tensor");
  char* base = static_cast<char*>(storage_->data());
  if (base == nullptr) return nullptr;
  return base + offset_ * static_cast<std::int64_t>(dtype_size(dtype_));
}

Tensor Tensor::view(Shape shape) const {
  DELTRON_CHECK(is_contiguous(), "view of '", name(), "' ", shape_text(shape_), " needs contiguous memory");
  DELTRON_CHECK_EQ(shape_count(shape), count(), "view of '", name(), "'");
  std::vector<std::int64_t> strides = contiguous_strides(shape);
  return Tensor(storage_, dtype_, std::move(shape), std::move(strides), offset_);
}

Tensor Tensor::slice(int dim, std::int64_t begin, std::int64_t length) const {
  if (dim < 0) dim += rank();
  DELTRON_CHECK(begin >= 0 && length >= 0 && begin + length <= size(dim), "slice [", begin, ",", begin + length, ") of dimension ", dim,
                " of '", name(), "' ", shape_text(shape_));
  Shape shape = shape_;
  shape[static_cast<std::size_t>(dim)] = length;
  return Tensor(storage_, dtype_, std::move(shape), strides_, offset_ + begin * stride(dim));
}

Tensor Tensor::split_last(std::int64_t heads) const {
  DELTRON_CHECK(heads > 0 && size(-1) % heads == 0, "'", name(), "' ", shape_text(shape_), " into ", heads, " heads");
  DELTRON_CHECK_EQ(stride(-1), 1, "last dimension of '", name(), "'");
  Shape shape = shape_;
  std::vector<std::int64_t> strides = strides_;
  const std::int64_t dim = size(-1) / heads;
  shape.back() = heads;
  strides.back() = dim;
  shape.push_back(dim);
  strides.push_back(1);
  return Tensor(storage_, dtype_, std::move(shape), std::move(strides), offset_);
}

Tensor Tensor::detached() const { return Tensor(storage_, dtype_, shape_, strides_, offset_); }

bool Tensor::same_view(const Tensor& other) const {
  return storage_ == other.storage_ && dtype_ == other.dtype_ && shape_ == other.shape_ && strides_ == other.strides_ &&
         offset_ == other.offset_;
}

void copy_from_host(Context& ctx, const Tensor& tensor, const void* data) {
  DELTRON_CHECK(tensor.is_contiguous(), "copy into '", tensor.name(), "'");
  tensor.storage()->bump_version();
  if (ctx.is_meta() || tensor.bytes() == 0) return;
  ctx.upload(tensor.data(), data, tensor.bytes());
}

void copy_to_host(Context& ctx, const Tensor& tensor, void* data) {
  DELTRON_CHECK(tensor.is_contiguous(), "copy from '", tensor.name(), "'");
  DELTRON_CHECK(!ctx.is_meta(), "a meta tensor holds no values");
  if (tensor.bytes() > 0) ctx.download(data, tensor.data(), tensor.bytes());
}

Event copy_to_host_later(Context& ctx, const Tensor& tensor, void* data) {
  DELTRON_CHECK(tensor.is_contiguous(), "copy from '", tensor.name(), "'");
  return ctx.download_later(data, tensor.data(), tensor.bytes());
}

std::vector<double> to_doubles(Context& ctx, const Tensor& tensor) {
  DELTRON_CHECK(!ctx.is_meta(), "a meta tensor holds no values");
  std::vector<double> values(static_cast<std::size_t>(tensor.count()));
  if (values.empty()) return values;
  // The part of the storage that the view spans, on the host: in place on the CPU, a copy from a device.
  std::int64_t last = 0;
  for (int dim = 0; dim < tensor.rank(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  std::vector<char> copy;
  const void* data = tensor.data();
  if (ctx.device() == DeviceKind::Cuda) {
    copy.resize(static_cast<std::size_t>(last + 1) * dtype_size(tensor.dtype()));
    ctx.download(copy.data(), data, static_cast<std::int64_t>(copy.size()));
    data = copy.data();
  }
  std::vector<std::int64_t> index(static_cast<std::size_t>(tensor.rank()), 0);
  for (double& value : values) {
    std::int64_t place = 0;
    for (int dim = 0; dim < tensor.rank(); ++dim) place += index[static_cast<std::size_t>(dim)] * tensor.stride(dim);
    value = load_double(data, tensor.dtype(), place);
    for (int dim = tensor.rank() - 1; dim >= 0; --dim) {
      if (++index[static_cast<std::size_t>(dim)] < tensor.size(dim)) break;
      index[static_cast<std::size_t>(dim)] = 0;
    }
  }
  return values;
}

void from_doubles(Context& ctx, const Tensor& tensor, const std::vector<double>& values) {
  DELTRON_CHECK(tensor.is_contiguous(), "values into '", tensor.name(), "'");
  DELTRON_CHECK_EQ(tensor.count(), static_cast<std::int64_t>(values.size()), "values of '", tensor.name(), "'");
  tensor.storage()->bump_version();
  if (ctx.is_meta()) return;
  std::vector<char> copy;
  void* data = tensor.data();
  if (ctx.device() == DeviceKind::Cuda) {
    copy.resize(static_cast<std::size_t>(tensor.bytes()));
    data = copy.data();
  }
  for (std::size_t i = 0; i < values.size(); ++i) store_double(data, tensor.dtype(), static_cast<std::int64_t>(i), values[i]);
  if (ctx.device() == DeviceKind::Cuda) ctx.upload(tensor.data(), data, tensor.bytes());
}

Tensor make_tensor(Context& ctx, Shape shape, DType dtype, const std::vector<double>& values, const char* name, MemoryTag tag) {
  Tensor tensor = Tensor::empty(ctx, std::move(shape), dtype, name, tag);
  from_doubles(ctx, tensor, values);
  return tensor;
}

}  // namespace deltron
