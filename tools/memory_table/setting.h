// The one GDN layer that a memory table is about: its sizes, and the widths that follow from them. The defaults are those of the
// published table. Knows no tensors.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/dtype.h"
#include "src/base/human.h"

namespace deltron::tools {

struct MemorySetting {
  bool second = false;  // gdn2
  std::int64_t hidden_size = 2048;
  std::int64_t seq_length = 1024;
  std::int64_t micro_batch_size = 1;
  std::int64_t key_heads = 16, value_heads = 32;
  std::int64_t key_dim = 128, value_dim = 128;
  std::int64_t conv_kernel = 4;
  DType dtype = DType::BF16;  // of weights and activations
  std::int64_t min_offloaded_tensor_size = 1048576;  // elements; smaller storages stay on the device
  std::int64_t published_chunk = 64;  // of the published rule; nothing of ours follows from it
  bool operator==(const MemorySetting&) const = default;

  std::string variant() const { return second ? "gdn2" : "gdn"; }
  std::int64_t tokens() const { return seq_length * micro_batch_size; }
  std::int64_t element() const { return static_cast<std::int64_t>(dtype_size(dtype)); }
  std::int64_t dq() const { return key_heads * key_dim; }
  std::int64_t dv() const { return value_heads * value_dim; }
  std::int64_t conv_width() const { return 2 * dq() + dv(); }  // q, k and v side by side
  // Rows of in_proj.
  std::int64_t projection_width() const { return second ? 4 * dq() + 3 * dv() : 2 * dq() + 2 * dv() + 2 * value_heads; }

  // The setting of the published table, of either variant.
  bool is_the_published_one() const {
    MemorySetting published;
    published.second = second;
    return *this == published;
  }
};

inline double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }
inline std::string mib_text(std::int64_t bytes, int digits = 3) { return fixed(mebibytes(bytes), digits); }
// "+16.000", "-8.125", "0.000".
inline std::string signed_mib(std::int64_t bytes, int digits = 3) { return (bytes > 0 ? "+" : "") + mib_text(bytes, digits); }

}  // namespace deltron::tools
