// A view over a storage: dtype, shape, strides, offset (all in elements). Copies are cheap and share the storage.
// What higher layers attach (gradient bookkeeping) hangs in an opaque slot.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/check.h"
#include "src/base/dtype.h"
#include "src/base/human.h"
#include "src/tensor/storage.h"
#include "src/tensor/stream.h"

namespace deltron {

class Context;

using Shape = std::vector<std::int64_t>;
std::int64_t shape_count(const Shape& shape);

struct TensorExtension {
  virtual ~TensorExtension() = default;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<Storage> storage, DType dtype, Shape shape, std::vector<std::int64_t> strides, std::int64_t offset);

  // Uninitialised memory of the context's device, counted under `tag` and the context's current scope.
  static Tensor empty(Context& ctx, Shape shape, DType dtype, const char* name, MemoryTag tag = MemoryTag::Activations);
  static Tensor zeros(Context& ctx, Shape shape, DType dtype, const char* name, MemoryTag tag = MemoryTag::Activations);

  bool defined() const { return storage_ != nullptr; }
  explicit operator bool() const { return defined(); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return static_cast<int>(shape_.size()); }
  std::int64_t size(int dim) const;    // negative dims count from the end
  std::int64_t stride(int dim) const;  // in elements
  std::int64_t count() const { return shape_count(shape_); }
  std::int64_t bytes() const { return count() * static_cast<std::int64_t>(dtype_size(dtype_)); }
  std::int64_t offset() const { return offset_; }
  bool is_contiguous() const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  DeviceKind device() const { return storage_->device(); }
  const std::string& name() const { return storage_->name(); }

  // Address of the first element; null on meta. Throws if the storage is not Resident.
  void* data() const;
  template <class T>
  T* data_as() const {
    return static_cast<T*>(data());
  }

  // Views, without gradient bookkeeping.
  Tensor view(Shape shape) const;                                                // contiguous tensors only
  Tensor slice(int dim, std::int64_t begin, std::int64_t length) const;
  Tensor split_last(std::int64_t heads) const;                                   // [.., H*D] -> [.., H, D]
  Tensor detached() const;                                                       // same view, no extension

  const std::shared_ptr<TensorExtension>& extension() const { return extension_; }
  void set_extension(std::shared_ptr<TensorExtension> extension) { extension_ = std::move(extension); }
  bool same_view(const Tensor& other) const;

 private:
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::F32;
  Shape shape_;
  std::vector<std::int64_t> strides_;
  std::int64_t offset_ = 0;
  std::shared_ptr<TensorExtension> extension_;
};

// Synchronous copies between host memory and a contiguous tensor (element type = tensor's dtype).
void copy_from_host(Context& ctx, const Tensor& tensor, const void* data);
void copy_to_host(Context& ctx, const Tensor& tensor, void* data);
// The same copy, only ordered behind the work that compute has been given: the host goes on at once, `data` outlives the event and is
// written when the event is complete. (The CPU computes inline, so there it is complete already.) Nothing on meta.
Event copy_to_host_later(Context& ctx, const Tensor& tensor, void* data);
// Any strides, any dtype, widened: for tests and reports.
std::vector<double> to_doubles(Context& ctx, const Tensor& tensor);
// Rounds to the tensor's dtype; contiguous.
void from_doubles(Context& ctx, const Tensor& tensor, const std::vector<double>& values);
Tensor make_tensor(Context& ctx, Shape shape, DType dtype, const std::vector<double>& values, const char* name,
                   MemoryTag tag = MemoryTag::Activations);

}  // namespace deltron
