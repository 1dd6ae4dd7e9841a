// Parameters of a model: declared by layers, then made all at once, so that main gradients lie in one buffer. A physical parameter may
// fuse logical sections along its rows (in_proj = query|key|value); names, initial values and checkpoints go by section.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/autograd/node.h"

namespace deltron {

enum class InitKind {
  Normal,   // normal(0, scale)
  Uniform,  // uniform(-scale, scale)
  Constant, // scale
  ALog,     // log of uniform(1, 16), drawn in fp64, never -inf
  DtBias,   // inverse softplus of dt, dt log-uniform in [0.001, 0.1] and at least 1e-4 (Mamba's time steps)
};

// Which part of a logical tensor a rank holds: `size` of `whole` along one dimension, from `begin`.
struct ParameterCut {
  int dim = -1;            // 0: rows (column-parallel weights, heads); 1: columns (row-parallel weights); -1: all of it is here
  std::int64_t begin = 0;
  std::int64_t whole = 0;
  // Several ranks hold the same part (replicated key-value heads): only the first of them writes it to checkpoints and counts it in norms.
  bool first_holder = true;
  int holders = 1;  // tensor-parallel ranks, one after the other, that hold this part and whose gradients of it are summed
};

// A row range of a physical parameter with a name of its own: full name = parameter name + "." + section name. Parameters that
// together make one logical matrix carry a "#part" suffix, which logical names drop.
struct ParameterSection {
  std::string name;
  std::int64_t rows = 0;  // here
  ParameterCut cut = {};
};

// Over which groups the gradient of this parameter is a partial sum when the model is cut over ranks.
struct PartialGradient {
  bool tensor_parallel = false;    // replicated over tensor-parallel ranks that each see their own heads
  bool sequence_parallel = false;  // replicated over tensor-parallel ranks that, under sequence parallelism, each see their own tokens
};

struct ParameterSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::F32;
  std::vector<ParameterSection> sections = {};  // empty: the parameter is one logical tensor
  ParameterCut cut = {};                        // of a parameter without sections
  InitKind init = InitKind::Normal;
  double init_scale = 0.02;
  bool weight_decay = true;            // false for 1-D parameters, A_log, dt_bias
  PartialGradient partial = {};
};

struct Parameter {
  ParameterSpec spec;
  Tensor value;          // a leaf if the store is trainable
  Tensor main_gradient;  // compute type, same shape; undefined if not trainable
};
using ParameterPtr = std::shared_ptr<Parameter>;

// What this rank holds of a logical tensor: a row range of a parameter.
struct LogicalTensor {
  std::string name;
  ParameterPtr parameter;
  std::int64_t row_begin = 0;  // in the parameter
  Shape shape;                 // here
  ParameterCut cut = {};
  Shape whole_shape() const;   // of the logical tensor
  Shape offset() const;        // where the part that is here begins in it
  Tensor value() const;          // view, no gradient bookkeeping
  Tensor slice(const Tensor& like_parameter) const;  // the same rows of a tensor with the parameter's shape
};

class ParameterStore {
 public:
  ParameterPtr declare(ParameterSpec spec);
  // Allocates values (and main gradients). Call once, after every layer has declared.
  void materialise(Context& ctx, bool trainable);
  // Initial values from counter-based streams keyed by (seed, logical name, block): every rank takes its part of one global draw.
  void initialise(Context& ctx, std::uint64_t seed);
  void zero_main_gradients(Context& ctx);
  // The same before a backward over all parameters, without writing what backward writes over anyway: gradients of weights of products.
  // They hold what they held until backward has passed, and finish_main_gradients() zeroes those that it did not reach.
  void start_main_gradients(Context& ctx);
  void finish_main_gradients(Context& ctx);
  // Sums over the tensor-parallel ranks, after backward and once a step, the gradients that are partial there: of parameters that declare it
  // (PartialGradient) and of parts that several ranks hold. One exchange. Sums over data and context ranks are not made here.
  void sum_partial_gradients(Context& ctx);

  const std::vector<ParameterPtr>& all() const { return parameters_; }
  std::vector<LogicalTensor> logical() const;
  std::int64_t count() const;        // elements, of this rank
  std::int64_t whole_count() const;  // of the model, on whatever ranks
  const Tensor& gradient_buffer() const { return gradients_; }

 private:
  std::vector<ParameterPtr> parameters_;
  std::set<std::string> names_;
  Tensor gradients_;
};

}  // namespace deltron
