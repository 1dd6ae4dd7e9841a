// See offload.h.
#include "src/autograd/offload.h"

#include <utility>

namespace deltron {
namespace {

// What a node holds instead of the tensor: the view, which is valid again once its storage is back. Checks as SavedTensor does.
class PackedTensor {
 public:
  PackedTensor(Tensor tensor, std::string name) : tensor_(std::move(tensor)), name_(std::move(name)), version_(tensor_.storage()->version()) {
    tensor_.storage()->add_saved(name_);
  }
  ~PackedTensor() { tensor_.storage()->remove_saved(); }
  PackedTensor(const PackedTensor&) = delete;
  PackedTensor& operator=(const PackedTensor&) = delete;

  Tensor unpack(Context& ctx) const {
    ctx.slot<OffloadManager>().restore(ctx, tensor_.storage().get());
    DELTRON_CHECK_EQ(tensor_.storage()->version(), version_, "'", name_, "' was written in place after a node had saved it");
    return tensor_;
  }

 private:
  Tensor tensor_;
  std::string name_;
  std::uint64_t version_;
};

class GroupStartNode : public Node {
 public:
  using Node::Node;
  std::shared_ptr<OffloadGroup> group;
  void backward(Context& ctx, BackwardCall& call) override {
    ctx.slot<OffloadManager>().end_group_backward(ctx, *group);
    call.set_gradient(0, call.take_output_gradient(0));
  }
  void release() override { group.reset(); }
};

class GroupCommitNode : public Node {
 public:
  using Node::Node;
  std::shared_ptr<OffloadGroup> group;
  void backward(Context& ctx, BackwardCall& call) override {
    ctx.slot<OffloadManager>().begin_group_backward(ctx, *group);
    call.set_gradient(0, call.take_output_gradient(0));
  }
  void release() override { group.reset(); }
};

template <class N>
Tensor identity(Context& ctx, const Tensor& x, const std::string& name, std::shared_ptr<OffloadGroup> group) {
  auto node = std::make_shared<N>(name);
  node->group = std::move(group);
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  return recorder.output(x);
}

}  // namespace

Tensor offload_group_start(Context& ctx, const Tensor& x, const char* module) {
  OffloadManager& manager = ctx.slot<OffloadManager>();
  if (!manager.handles(module) || !GraphRecorder::wanted(ctx, {x})) return x;
  return identity<GroupStartNode>(ctx, x, std::string("offload start ") + module, manager.start_group(ctx, module));
}

OffloadCapture::OffloadCapture(Context& ctx, const char* module) {
  if (!ctx.slot<AutogradState>().grad_enabled) return;
  const std::shared_ptr<OffloadGroup> group = ctx.slot<OffloadManager>().open_group(module);
  if (!group) return;
  SavedTensorHooks hooks;
  hooks.pack = [&ctx, group](const Tensor& tensor, const std::string& name) {
    ctx.slot<OffloadManager>().capture(*group, tensor);
    return std::any(std::make_shared<PackedTensor>(tensor, name));
  };
  hooks.unpack = [&ctx](const std::any& packed) { return std::any_cast<const std::shared_ptr<PackedTensor>&>(packed)->unpack(ctx); };
  guard_.emplace(ctx, std::move(hooks));
}

Tensor offload_group_commit(Context& ctx, const Tensor& out, const char* module, const std::vector<Tensor>& releases) {
  if (!ctx.slot<AutogradState>().grad_enabled) return out;
  OffloadManager& manager = ctx.slot<OffloadManager>();
  const std::shared_ptr<OffloadGroup> group = manager.open_group(module);
  if (!group) return out;
  DELTRON_CHECK(requires_grad(out), "offload group '", module, "' commits on '", out.name(), "', which no recorded operation made");
  manager.commit(ctx, group, releases);
  return identity<GroupCommitNode>(ctx, out, std::string("offload commit ") + module, group);
}

}  // namespace deltron
