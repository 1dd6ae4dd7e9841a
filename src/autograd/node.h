// The graph: a node is one recorded operation; its edges point at the producers of its inputs; it keeps what its backward needs as
// saved tensors. Nodes are made by the functions in src/autograd/functions_*.h and by nobody else.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/tensor/context.h"
#include "src/tensor/tensor.h"

namespace deltron {

class Node;
class BackwardCall;

// Hook on one tensor's finished gradient: runs before the backward of the node that made the tensor, in order of registration.
using GradientHook = std::function<void(const Tensor& gradient)>;

// What a leaf collects: a parameter's fp32 main gradient (accumulated in place), or the gradient of a plain leaf.
struct Leaf {
  std::string name;
  Tensor main_gradient;       // defined: gradients are added here, in the order in which backward meets them
  Tensor gradient;            // otherwise: their sum
  std::int64_t accumulations = 0;
  bool stale = false;         // what main_gradient holds counts for nothing: whoever comes first writes over it
  bool replaced = false;      // the last one who came first did write over it, so that zeros would have been in vain
  std::function<void()> on_accumulated = {};  // after each addition, while backward runs
};
// The main gradient as a buffer to add to: zeroed where it is stale.
Tensor main_gradient_to_add_to(Context& ctx, Leaf& leaf);

// Gradient bookkeeping that hangs on a tensor.
struct AutogradMeta : TensorExtension {
  std::shared_ptr<Node> node;  // producer; null for leaves
  int output = 0;              // which output of the producer
  std::shared_ptr<Leaf> leaf;  // leaves only
};

// Does backward have to reach this tensor?
bool requires_grad(const Tensor& tensor);
// Makes a leaf; the gradient appears in leaf_of(tensor).
Tensor make_leaf(const Tensor& tensor, const std::string& name, Tensor main_gradient = {});
std::shared_ptr<Leaf> leaf_of(const Tensor& tensor);
void add_gradient_hook(const Tensor& tensor, GradientHook hook);  // on a non-leaf that requires grad

// Packs and unpacks what nodes save; a stack in the context (the innermost applies). Offload uses it.
struct SavedTensorHooks {
  std::function<std::any(const Tensor& tensor, const std::string& name)> pack;
  std::function<Tensor(const std::any& packed)> unpack;
};

struct AutogradState {
  bool grad_enabled = true;
  std::uint64_t next_sequence = 0;
  std::vector<std::shared_ptr<SavedTensorHooks>> saved_hooks;
};

class GradModeGuard {
 public:
  GradModeGuard(Context& ctx, bool enabled) : state_(ctx.slot<AutogradState>()), before_(state_.grad_enabled) { state_.grad_enabled = enabled; }
  ~GradModeGuard() { state_.grad_enabled = before_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  AutogradState& state_;
  bool before_;
};

class SavedTensorHooksGuard {
 public:
  SavedTensorHooksGuard(Context& ctx, SavedTensorHooks hooks);
  ~SavedTensorHooksGuard();
  SavedTensorHooksGuard(const SavedTensorHooksGuard&) = delete;
  SavedTensorHooksGuard& operator=(const SavedTensorHooksGuard&) = delete;

 private:
  AutogradState& state_;
};

// A tensor that a node keeps. Remembers the storage's version: writing in place into it before backward is an error.
// Counts its storage as saved-for-backward for as long as it holds it.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(Context& ctx, const Tensor& tensor, std::string name);
  ~SavedTensor();
  SavedTensor(SavedTensor&& other) noexcept;
  SavedTensor& operator=(SavedTensor&& other) noexcept;
  SavedTensor(const SavedTensor&) = delete;
  SavedTensor& operator=(const SavedTensor&) = delete;

  bool defined() const { return tensor_.defined() || packed_.has_value(); }
  Tensor get() const;  // keep it for as long as its memory is read: a hook may have made it for this call alone
  void release();

 private:
  std::string name_;
  Tensor tensor_;  // not packed: the view itself
  std::uint64_t version_ = 0;
  std::any packed_;
  std::shared_ptr<SavedTensorHooks> hooks_;
};

// Where the gradient of one input goes.
struct Edge {
  std::shared_ptr<Node> node;  // producer, or
  std::shared_ptr<Leaf> leaf;  // leaf; neither: no gradient wanted
  int output = 0;
  bool wanted() const { return node != nullptr || leaf != nullptr; }
};

struct OutputInfo {
  Shape shape;
  DType dtype = DType::F32;
  std::vector<GradientHook> hooks;
};

class Node {
 public:
  explicit Node(std::string name) : name_(std::move(name)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Reads call.output_gradient(i), must set every wanted input's gradient.
  virtual void backward(Context& ctx, BackwardCall& call) = 0;
  // Drops saved tensors once backward has run.
  virtual void release() = 0;
  // Nodes whose outputs are slices of their one input: gradients of the outputs are written straight into slots of one gradient of
  // the input, which the engine hands on; backward() is not called then.
  struct SlicedInput {
    Shape shape;
    DType dtype;
  };
  virtual std::optional<SlicedInput> sliced_input() const { return std::nullopt; }
  virtual Tensor slot(const Tensor& whole, int output) const;
  // May backward run although output i received no gradient (an optional result nobody used)?
  virtual bool output_is_optional(int output) const;

  // Set once backward has run: a graph is good for one backward.
  bool spent() const { return spent_; }
  void set_spent() { spent_ = true; }

  const std::string& name() const { return name_; }
  const MemoryScope& scope() const { return scope_; }
  std::uint64_t sequence() const { return sequence_; }
  const std::vector<Edge>& inputs() const { return inputs_; }
  const std::vector<std::string>& input_names() const { return input_names_; }
  std::vector<OutputInfo>& outputs() { return outputs_; }

 private:
  friend class GraphRecorder;
  std::string name_;
  MemoryScope scope_;  // layer and region of the forward call, for messages and for counting its backward's allocations
  std::uint64_t sequence_ = 0;
  bool spent_ = false;
  std::vector<Edge> inputs_;
  std::vector<std::string> input_names_;
  std::vector<OutputInfo> outputs_;
};

// Connects a node: inputs in order, then outputs in order.
class GraphRecorder {
 public:
  // Is a graph wanted here: grad mode on and any of the inputs requires grad?
  static bool wanted(Context& ctx, const std::vector<Tensor>& inputs);
  GraphRecorder(Context& ctx, std::shared_ptr<Node> node);
  // Returns whether this input's gradient is wanted.
  bool input(const Tensor& tensor, const char* name);
  // The same view, now known as this node's next output.
  Tensor output(const Tensor& tensor);

 private:
  std::shared_ptr<Node> node_;
};

// One run of one node's backward.
class BackwardCall {
 public:
  virtual ~BackwardCall() = default;
  virtual const Tensor& output_gradient(int output) const = 0;  // undefined only for optional outputs
  virtual Tensor take_output_gradient(int output) = 0;          // the same, handed over: nobody else holds it afterwards
  virtual bool wanted(int input) const = 0;
  // Memory of shape [..] to write the gradient of `input` into: a slot of a larger gradient where the input is a slice, else fresh.
  virtual Tensor destination(int input, const Shape& shape, DType dtype) = 0;
  // Parameters with main gradients: the buffer to add to (then call accumulated()). Undefined for other inputs.
  virtual Tensor main_gradient(int input) const = 0;
  // The same for an operation that can write over as well as add: `add` says which of them to do.
  virtual Tensor main_gradient(int input, bool& add) const = 0;
  virtual void accumulated(int input) = 0;
  virtual void set_gradient(int input, const Tensor& gradient) = 0;
  // Takes the output gradient's memory over if nobody else holds it, so that it may be written in place; else undefined.
  virtual bool may_overwrite(int output) const = 0;
};

}  // namespace deltron
