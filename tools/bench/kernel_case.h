// One measurement of `deltron bench kernels`: a kernel, its sizes, the work it has to do, and how its inputs are made. The table of all
// cases is the concatenation of the families' (cases_*.cpp).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/tensor/ops.h"
#include "src/tensor/sequence_layout.h"
#include "tools/bench/work.h"

namespace deltron::tools {

using LayoutPtr = std::shared_ptr<const SequenceLayout>;

// Memory of the sets of one case: random inputs, outputs, and one workspace that all sets share. All of it is counted as workspace.
class CaseMemory {
 public:
  explicit CaseMemory(Context& ctx);
  Context& ctx() { return ctx_; }
  // Values of a normal distribution times `scale`, plus `shift`: one random stretch, repeated, begun elsewhere for each tensor.
  Tensor random(const Shape& shape, DType dtype, double scale = 1, double shift = 0);
  Tensor empty(const Shape& shape, DType dtype);
  Tensor ids(std::int64_t count, std::int64_t below);  // I32
  kernels::Workspace workspace(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }  // without workspace

 private:
  Context& ctx_;
  std::vector<float> stretch_;
  std::int64_t bytes_ = 0;
  std::uint64_t made_ = 0;
  Tensor device_stretch_, workspace_;
};

struct KernelCase {
  std::string family;  // "causal_conv1d"
  std::string name;    // "causal_conv1d_forward"
  std::string shape;   // "32768 x 4096, 4 taps, 8 documents"
  Work work;
  // Makes one set of inputs and outputs; the call launches the kernel on them.
  std::function<std::function<void()>(CaseMemory& memory)> make;
  std::string kernel = {};  // which one serves these sizes, where there are several
};

// What the cases are made for.
struct CaseSetting {
  Context* ctx = nullptr;
  KernelSizes sizes;
  DType dtype = DType::F32;
  LayoutPtr layout;  // documents of equal length
  LayoutPtr packed;  // the same tokens, more documents, of unequal length
  double item() const { return static_cast<double>(dtype_size(dtype)); }
  DType compute() const { return compute_dtype(dtype); }
};
// Layouts for these sizes.
CaseSetting make_setting(Context& ctx, const KernelSizes& sizes, DType dtype);

using CaseTable = std::vector<KernelCase>;
void add_matmul_cases(const CaseSetting& setting, CaseTable& table);
void add_delta_rule_cases(const CaseSetting& setting, CaseTable& table);
void add_gdn_cases(const CaseSetting& setting, CaseTable& table);      // convolution, norms of heads, fused preparation, gated norm
void add_block_cases(const CaseSetting& setting, CaseTable& table);    // RMSNorm, SwiGLU, dropout, sums
void add_softmax_cases(const CaseSetting& setting, CaseTable& table);  // attention, rotation, output gate
void add_vocabulary_cases(const CaseSetting& setting, CaseTable& table);
void add_optimizer_cases(const CaseSetting& setting, CaseTable& table);
CaseTable all_cases(const CaseSetting& setting);

}  // namespace deltron::tools
