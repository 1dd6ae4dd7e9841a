// See products.h. C = A B in row-major order is asked for as C^T = B^T A^T in the library's column-major order.
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "kernels/cuda/error.h"
#include "kernels/cuda/products.h"
#include "src/base/error.h"

namespace deltron::kernels::cuda {
namespace {

// The functions that are used, found by name.
struct Functions {
  void* library = nullptr;
  std::string path, problem;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;

  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (function == nullptr && problem.empty()) problem = path + " has no " + name;
  }
};

// The loader's own search, then beside the binary's lib folder and in the toolkit.
Functions open_library() {
  Functions f;
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  std::vector<std::string> places;
  if (const char* given = std::getenv("DELTRON_CUBLASLT")) places.push_back(given);
  places.push_back(name);
  places.push_back("/usr/local/cuda/lib64/" + name);
  places.push_back("/usr/local/cuda-" + std::to_string(CUBLAS_VER_MAJOR) + "/lib64/" + name);
  for (const std::string& place : places) {
    f.library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (f.library == nullptr) continue;
    f.path = place;
    break;
  }
  if (f.library == nullptr) {
    f.problem = name + " was found neither by the loader nor in /usr/local/cuda/lib64";
    return f;
  }
  f.find(f.get_version, "cublasLtGetVersion");
  f.find(f.create, "cublasLtCreate");
  f.find(f.destroy, "cublasLtDestroy");
  f.find(f.matmul, "cublasLtMatmul");
  f.find(f.desc_create, "cublasLtMatmulDescCreate");
  f.find(f.desc_destroy, "cublasLtMatmulDescDestroy");
  f.find(f.desc_set, "cublasLtMatmulDescSetAttribute");
  f.find(f.layout_create, "cublasLtMatrixLayoutCreate");
  f.find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  f.find(f.preference_create, "cublasLtMatmulPreferenceCreate");
  f.find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  f.find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  f.find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  return f;
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::DeviceFailed, ErrorText{std::string("cuBLASLt: ") + what, "matmul", "status " + std::to_string(status), "",
                                                 "run 'deltron doctor'"});
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return CUDA_R_64F;
    case DType::BF16:
      return CUDA_R_16BF;
    case DType::F16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// An operand as a column-major matrix of `rows` x `cols` with a leading dimension, perhaps to be transposed.
struct Operand {
  bool transposed = false;
  std::int64_t rows = 0, cols = 0, leading = 0;
};

// The library's left operand is B^T [N,K], its right one A^T [K,M]: `inner` and `outer` are the strides along K and along N or M.
Operand operand(std::int64_t outer_size, std::int64_t inner_size, std::int64_t outer_stride, std::int64_t inner_stride,
                bool outer_first) {
  Operand result;
  const bool outer_contiguous = outer_stride == 1 || outer_size == 1;
  if (outer_contiguous && (inner_stride >= outer_size || inner_size == 1)) {  // columns run along `outer`
    result = {false, outer_size, inner_size, inner_size == 1 ? outer_size : inner_stride};
  } else {
    result = {true, inner_size, outer_size, outer_size == 1 ? inner_size : outer_stride};
  }
  if (!outer_first) result.transposed = !result.transposed;
  return result;
}

// Alignment in bytes that a matrix is sure to have: of its start and of its columns.
std::uint32_t alignment(const void* data, std::int64_t leading, DType dtype) {
  const auto bits = reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(leading) * dtype_size(dtype);
  std::uint32_t bytes = 256;
  while (bytes > 1 && (bits & (bytes - 1)) != 0) bytes /= 2;
  return bytes;
}

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, int, int, int, bool, bool, std::int64_t, std::int64_t,
                       std::int64_t, bool, std::uint32_t, std::uint32_t, std::uint32_t>;

struct Plan {
  bool exists = false;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

class CublasLt : public ProductLibrary {
 public:
  ~CublasLt() override {
    for (auto& [key, plan] : plans_) {
      if (plan.left != nullptr) f_.layout_destroy(plan.left);
      if (plan.right != nullptr) f_.layout_destroy(plan.right);
      if (plan.out != nullptr) f_.layout_destroy(plan.out);
      if (plan.operation != nullptr) f_.desc_destroy(plan.operation);
    }
    if (handle_ != nullptr) f_.destroy(handle_);
  }

  bool multiply(const MatmulArgs& args, void* stream) override {
    open();
    const Operand left = operand(args.n, args.k, args.b_col_stride, args.b_row_stride, true);
    const Operand right = operand(args.m, args.k, args.a_row_stride, args.a_col_stride, false);
    const std::int64_t out_leading = args.m == 1 ? args.n : args.c_row_stride;
    const std::uint32_t aligned[] = {alignment(args.b, left.leading, args.b_dtype), alignment(args.a, right.leading, args.a_dtype),
                                     alignment(args.c, out_leading, args.c_dtype)};
    const Key key{args.m,
                  args.n,
                  args.k,
                  static_cast<int>(args.a_dtype),
                  static_cast<int>(args.b_dtype),
                  static_cast<int>(args.c_dtype),
                  left.transposed,
                  right.transposed,
                  left.leading,
                  right.leading,
                  out_leading,
                  args.accumulate,
                  aligned[0],
                  aligned[1],
                  aligned[2]};
    auto known = plans_.find(key);
    if (known == plans_.end()) known = plans_.emplace(key, plan(args, left, right, out_leading, aligned)).first;
    const Plan& plan = known->second;
    if (!plan.exists) return false;
    const float alpha32 = 1, beta32 = args.accumulate ? 1 : 0;
    const double alpha64 = 1, beta64 = args.accumulate ? 1 : 0;
    const bool wide = args.a_dtype == DType::F64;
    const void* alpha = wide ? static_cast<const void*>(&alpha64) : &alpha32;
    const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
    const auto start = reinterpret_cast<std::uintptr_t>(args.workspace.data);
    void* workspace = reinterpret_cast<void*>((start + kProductAlignment - 1) / kProductAlignment * kProductAlignment);
    check(f_.matmul(handle_, plan.operation, alpha, args.b, plan.left, args.a, plan.right, beta, args.c, plan.out, args.c, plan.out,
                    &plan.algorithm, workspace, static_cast<std::size_t>(kProductWorkspace - kProductAlignment),
                    static_cast<cudaStream_t>(stream)),
          "product");
    return true;
  }

 private:
  void open() {
    if (handle_ != nullptr) return;
    f_ = open_library();
    if (!f_.problem.empty()) {
      throw Error(ErrorCode::DeviceUnavailable,
                  ErrorText{"cuBLASLt is missing", "", f_.problem,
                            "matrix products on cuda need cuBLASLt of CUDA " + std::to_string(CUBLAS_VER_MAJOR),
                            "install the CUDA run-time libraries, or name the file in DELTRON_CUBLASLT"});
    }
    check(f_.create(&handle_), "start");
  }

  Plan plan(const MatmulArgs& args, const Operand& left, const Operand& right, std::int64_t out_leading,
            const std::uint32_t* aligned) {
    Plan plan;
    const bool wide = args.a_dtype == DType::F64;
    check(f_.desc_create(&plan.operation, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F),
          "operation");
    const cublasOperation_t turn_left = left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            turn_right = right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(f_.desc_set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &turn_left, sizeof(turn_left)), "operation");
    check(f_.desc_set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &turn_right, sizeof(turn_right)), "operation");
    const auto layout = [&](cublasLtMatrixLayout_t* made, DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t leading) {
      check(f_.layout_create(made, data_type(dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols), leading),
            "layout");
    };
    layout(&plan.left, args.b_dtype, left.rows, left.cols, left.leading);
    layout(&plan.right, args.a_dtype, right.rows, right.cols, right.leading);
    layout(&plan.out, args.c_dtype, args.n, args.m, out_leading);
    cublasLtMatmulPreference_t preference = nullptr;
    check(f_.preference_create(&preference), "preference");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const void* value, std::size_t bytes) {
      check(f_.preference_set(preference, which, value, bytes), "preference");
    };
    const auto workspace = static_cast<std::uint64_t>(kProductWorkspace - kProductAlignment);
    // Sums of a cut K are formed in the workspace in a fixed order, never by writers that meet in C.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &aligned[0], sizeof(aligned[0]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &aligned[1], sizeof(aligned[1]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &aligned[2], sizeof(aligned[2]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &aligned[2], sizeof(aligned[2]));
    cublasLtMatmulHeuristicResult_t answer{};
    int answers = 0;
    const cublasStatus_t status =
        f_.heuristic(handle_, plan.operation, plan.left, plan.right, plan.out, plan.out, preference, 1, &answer, &answers);
    f_.preference_destroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choice of a plan");
    plan.exists = status == CUBLAS_STATUS_SUCCESS && answers > 0;
    if (plan.exists) plan.algorithm = answer.algo;
    return plan;
  }

  Functions f_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace

std::shared_ptr<ProductLibrary> make_products() { return std::make_shared<CublasLt>(); }

ProductLibraryInfo product_library_info() {
  const Functions f = open_library();
  ProductLibraryInfo info;
  info.found = f.problem.empty();
  info.path = f.path;
  info.problem = f.problem;
  if (info.found) {
    const std::size_t version = f.get_version();
    info.version =
        std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
  }
  return info;
}

bool library_takes(const MatmulArgs& args) {
  if (args.k == 0 || args.a_dtype != args.b_dtype) return false;
  const bool same = args.c_dtype == args.a_dtype;
  const bool half = args.a_dtype == DType::BF16 || args.a_dtype == DType::F16;
  if (!same && !(half && args.c_dtype == DType::F32)) return false;
  const auto rows_lie = [](std::int64_t rows, std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride) {
    const bool by_rows = (col_stride == 1 || cols == 1) && (row_stride >= cols || rows == 1);
    const bool by_cols = (row_stride == 1 || rows == 1) && (col_stride >= rows || cols == 1);
    return by_rows || by_cols;
  };
  return rows_lie(args.m, args.k, args.a_row_stride, args.a_col_stride) &&
         rows_lie(args.k, args.n, args.b_row_stride, args.b_col_stride) && (args.m == 1 || args.c_row_stride >= args.n);
}

}  // namespace deltron::kernels::cuda
