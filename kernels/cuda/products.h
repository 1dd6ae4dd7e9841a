// Matrix products by cuBLASLt. The library is opened at run time, when the first product asks for it, so that a binary starts where
// it is absent; its plans are chosen once a shape, by the library's first answer, never by timing. Host code only; one object a
// context.
#pragma once

#include <memory>
#include <string>

#include "kernels/matmul.h"

namespace deltron::kernels::cuda {

// What a product's caller lends: the library's part, and room to begin it on 256 bytes.
inline constexpr std::int64_t kProductAlignment = 256;
inline constexpr std::int64_t kProductWorkspace = (std::int64_t{32} << 20) + kProductAlignment;

class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;
  // False where no plan exists for these strides, types or alignments: the own kernel serves them.
  virtual bool multiply(const MatmulArgs& args, void* stream) = 0;
};
std::shared_ptr<ProductLibrary> make_products();

// Types and strides that cuBLASLt is asked about, from the arguments alone.
bool library_takes(const MatmulArgs& args);

// Where the library was found and its version, or why not; for reports.
struct ProductLibraryInfo {
  bool found = false;
  std::string path, version, problem;
};
ProductLibraryInfo product_library_info();

}  // namespace deltron::kernels::cuda
