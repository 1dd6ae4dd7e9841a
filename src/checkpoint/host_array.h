// Tensors on the host as files hold them: name, dtype, shape, row-major bytes. Owning (HostArray) and not (HostView).
// Knows nothing of devices, storages or ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/human.h"

namespace deltron {

struct HostView {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

struct HostArray {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;

  HostView view() const { return HostView{name, dtype, shape, bytes.data(), bytes.size()}; }
};

// Product of the sizes; 1 for rank 0.
std::int64_t element_count(const std::vector<std::int64_t>& shape);

// Zeros of that shape.
HostArray make_array(std::string name, DType dtype, std::vector<std::int64_t> shape);
HostArray copy_of(const HostView& view);
// Every element as a double; fp16 and bf16 exactly, int64 beyond 2^53 rounded.
std::vector<double> to_doubles(const HostView& view);
HostArray from_doubles(std::string name, DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& values);
// Same values in another dtype (round to nearest even; floats to integers truncate).
HostArray converted(const HostView& view, DType dtype);

}  // namespace deltron
