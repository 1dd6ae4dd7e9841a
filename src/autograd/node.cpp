// See node.h.
#include "src/autograd/node.h"

#include <utility>

#include "src/tensor/ops.h"

namespace deltron {
namespace {

AutogradMeta* meta_of(const Tensor& tensor) { return static_cast<AutogradMeta*>(tensor.extension().get()); }

}  // namespace

bool requires_grad(const Tensor& tensor) { return tensor.defined() && tensor.extension() != nullptr; }

Tensor make_leaf(const Tensor& tensor, const std::string& name, Tensor main_gradient) {
  auto meta = std::make_shared<AutogradMeta>();
  meta->leaf = std::make_shared<Leaf>();
  meta->leaf->name = name;
  meta->leaf->main_gradient = std::move(main_gradient);
  Tensor leaf = tensor.detached();
  leaf.set_extension(meta);
  return leaf;
}

std::shared_ptr<Leaf> leaf_of(const Tensor& tensor) {
  DELTRON_CHECK(requires_grad(tensor) && meta_of(tensor)->leaf != nullptr, "'", tensor.name(), "' is not a leaf");
  return meta_of(tensor)->leaf;
}

Tensor main_gradient_to_add_to(Context& ctx, Leaf& leaf) {
  if (leaf.stale && leaf.main_gradient.defined()) {
    fill(ctx, leaf.main_gradient, 0);
    leaf.stale = leaf.replaced = false;
  }
  return leaf.main_gradient;
}

void add_gradient_hook(const Tensor& tensor, GradientHook hook) {
  DELTRON_CHECK(requires_grad(tensor) && meta_of(tensor)->node != nullptr, "'", tensor.name(), "' is no recorded result");
  AutogradMeta* meta = meta_of(tensor);
  meta->node->outputs()[static_cast<std::size_t>(meta->output)].hooks.push_back(std::move(hook));
}

SavedTensorHooksGuard::SavedTensorHooksGuard(Context& ctx, SavedTensorHooks hooks) : state_(ctx.slot<AutogradState>()) {
  state_.saved_hooks.push_back(std::make_shared<SavedTensorHooks>(std::move(hooks)));
}

SavedTensorHooksGuard::~SavedTensorHooksGuard() { state_.saved_hooks.pop_back(); }

SavedTensor::SavedTensor(Context& ctx, const Tensor& tensor, std::string name) : name_(std::move(name)) {
  if (!tensor.defined()) return;
  AutogradState& state = ctx.slot<AutogradState>();
  if (!state.saved_hooks.empty()) {
    hooks_ = state.saved_hooks.back();
    packed_ = hooks_->pack(tensor.detached(), name_);
    return;
  }
  tensor_ = tensor.detached();
  version_ = tensor_.storage()->version();
  tensor_.storage()->add_saved(name_);
}

SavedTensor::~SavedTensor() { release(); }

SavedTensor::SavedTensor(SavedTensor&& other) noexcept
    : name_(std::move(other.name_)),
      tensor_(std::exchange(other.tensor_, Tensor())),
      version_(other.version_),
      packed_(std::move(other.packed_)),
      hooks_(std::move(other.hooks_)) {
  other.packed_.reset();
}

SavedTensor& SavedTensor::operator=(SavedTensor&& other) noexcept {
  if (this != &other) {
    release();
    name_ = std::move(other.name_);
    tensor_ = std::exchange(other.tensor_, Tensor());
    version_ = other.version_;
    packed_ = std::move(other.packed_);
    other.packed_.reset();
    hooks_ = std::move(other.hooks_);
  }
  return *this;
}

void SavedTensor::release() {
  if (tensor_.defined()) tensor_.storage()->remove_saved();
  tensor_ = Tensor();
  packed_.reset();
  hooks_.reset();
}

Tensor SavedTensor::get() const {
  if (packed_.has_value()) return hooks_->unpack(packed_);
  DELTRON_CHECK(tensor_.defined(), "saved tensor '", name_, "' was released: backward ran twice over one graph?");
  DELTRON_CHECK_EQ(tensor_.storage()->version(), version_, "'", name_, "' was written in place after a node had saved it");
  return tensor_;
}

Tensor Node::slot(const Tensor&, int) const {
  DELTRON_CHECK(false, "node '", name_, "' has no slots");
  return {};
}
bool Node::output_is_optional(int) const { return false; }

bool GraphRecorder::wanted(Context& ctx, const std::vector<Tensor>& inputs) {
  if (!ctx.slot<AutogradState>().grad_enabled) return false;
  for (const Tensor& input : inputs) {
    if (requires_grad(input)) return true;
  }
  return false;
}

GraphRecorder::GraphRecorder(Context& ctx, std::shared_ptr<Node> node) : node_(std::move(node)) {
  node_->sequence_ = ctx.slot<AutogradState>().next_sequence++;
  node_->scope_ = ctx.scope();
}

bool GraphRecorder::input(const Tensor& tensor, const char* name) {
  Edge edge;
  if (requires_grad(tensor)) {
    AutogradMeta* meta = meta_of(tensor);
    edge.node = meta->node;
    edge.leaf = meta->leaf;
    edge.output = meta->output;
  }
  node_->inputs_.push_back(edge);
  node_->input_names_.emplace_back(name);
  return edge.wanted();
}

Tensor GraphRecorder::output(const Tensor& tensor) {
  auto meta = std::make_shared<AutogradMeta>();
  meta->node = node_;
  meta->output = static_cast<int>(node_->outputs_.size());
  node_->outputs_.push_back({tensor.shape(), tensor.dtype(), {}});
  Tensor result = tensor.detached();
  result.set_extension(std::move(meta));
  return result;
}

}  // namespace deltron
