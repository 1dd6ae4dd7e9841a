// See engine.h.
#include "src/autograd/engine.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "src/tensor/ops.h"

namespace deltron {
namespace {

struct Contribution {
  std::uint64_t consumer;  // sequence number of the node that contributed; roots count as the latest
  Tensor gradient;
};

struct NodeState {
  std::shared_ptr<Node> node;
  int pending = 0;                                     // consumers that have not run yet
  std::vector<std::vector<Contribution>> contributions;  // per output
  Tensor whole;                                        // sliced nodes: the gradient of the input, filled slot by slot
  std::vector<bool> slot_given;
};

bool sole_owner(const Tensor& tensor) { return tensor.storage().use_count() == 1; }

class Run;

class Call : public BackwardCall {
 public:
  Call(Run& run, Context& ctx, Node& node, std::vector<Tensor> gradients)
      : run_(run), ctx_(ctx), node_(node), gradients_(std::move(gradients)), done_(node.inputs().size(), false) {}

  const Tensor& output_gradient(int output) const override { return gradients_[static_cast<std::size_t>(output)]; }
  Tensor take_output_gradient(int output) override { return std::exchange(gradients_[static_cast<std::size_t>(output)], Tensor()); }
  bool wanted(int input) const override { return edge(input).wanted(); }
  Tensor destination(int input, const Shape& shape, DType dtype) override;
  Tensor main_gradient(int input) const override {
    const Edge& e = edge(input);
    return e.leaf ? main_gradient_to_add_to(ctx_, *e.leaf) : Tensor();
  }
  Tensor main_gradient(int input, bool& add) const override {
    const Edge& e = edge(input);
    add = true;
    if (!e.leaf || !e.leaf->main_gradient.defined()) return Tensor();
    if (e.leaf->stale) {
      add = false;
      e.leaf->stale = false;
      e.leaf->replaced = true;
    }
    return e.leaf->main_gradient;
  }
  void accumulated(int input) override {
    Leaf& leaf = *edge(input).leaf;
    leaf.accumulations++;
    if (leaf.on_accumulated) leaf.on_accumulated();
    done_[static_cast<std::size_t>(input)] = true;
  }
  void set_gradient(int input, const Tensor& gradient) override;
  bool may_overwrite(int output) const override { return sole_owner(gradients_[static_cast<std::size_t>(output)]); }

  void check_complete() const {
    for (std::size_t input = 0; input < done_.size(); ++input) {
      DELTRON_CHECK(done_[input] || !node_.inputs()[input].wanted(), "differentiable input '", node_.input_names()[input], "' of '",
                    node_.name(), "' (layer ", node_.scope().layer, ") received no gradient");
    }
  }

 private:
  const Edge& edge(int input) const { return node_.inputs()[static_cast<std::size_t>(input)]; }
  Run& run_;
  Context& ctx_;
  Node& node_;
  std::vector<Tensor> gradients_;
  std::vector<bool> done_;
};

class Run {
 public:
  explicit Run(Context& ctx) : ctx_(ctx) {}

  void add_root(const Tensor& root, const Tensor& gradient) {
    DELTRON_CHECK(requires_grad(root), "backward from '", root.name(), "', which no recorded operation made");
    DELTRON_CHECK(root.shape() == gradient.shape(), "gradient ", shape_text(gradient.shape()), " of '", root.name(), "' ",
                  shape_text(root.shape()));
    DELTRON_CHECK(root.dtype() == gradient.dtype(), "gradient of '", root.name(), "' is ", dtype_name(gradient.dtype()), ", the tensor ",
                  dtype_name(root.dtype()));
    const auto* meta = static_cast<const AutogradMeta*>(root.extension().get());
    Edge edge{meta->node, meta->leaf, meta->output};
    if (edge.node) discover(edge.node);
    deliver(edge, ~std::uint64_t{0}, gradient);
  }

  void execute() {
    for (auto& [node, state] : states_) {
      if (state.pending == 0) ready_[node->sequence()] = node;
    }
    while (!ready_.empty()) {
      Node* node = std::prev(ready_.end())->second;
      ready_.erase(std::prev(ready_.end()));
      run_node(node);
    }
  }

  // Hands a gradient to the producer or leaf behind an edge.
  void deliver(const Edge& edge, std::uint64_t consumer, const Tensor& gradient) {
    if (edge.leaf) {
      Leaf& leaf = *edge.leaf;
      leaf.accumulations++;
      if (leaf.main_gradient.defined()) {
        accumulate(ctx_, gradient, main_gradient_to_add_to(ctx_, leaf));
      } else if (!leaf.gradient.defined()) {
        leaf.gradient = gradient.detached();
      } else {
        Tensor sum = Tensor::empty(ctx_, leaf.gradient.shape(), leaf.gradient.dtype(), "leaf gradient");
        add(ctx_, contiguous(ctx_, leaf.gradient, "gradient"), contiguous(ctx_, gradient, "gradient"), sum);
        leaf.gradient = sum;
      }
      return;
    }
    NodeState& state = states_.at(edge.node.get());
    state.contributions[static_cast<std::size_t>(edge.output)].push_back({consumer, gradient.detached()});
  }

  Tensor destination(const Edge& edge, const Shape& shape, DType dtype) {
    if (edge.node) {
      NodeState& state = states_.at(edge.node.get());
      const auto output = static_cast<std::size_t>(edge.output);
      if (edge.node->sliced_input() && !state.slot_given[output]) {
        state.slot_given[output] = true;
        return edge.node->slot(whole_of(state), edge.output);
      }
    }
    return Tensor::empty(ctx_, shape, dtype, "gradient");
  }

  void consumer_done(const Edge& edge) {
    if (!edge.node) return;
    NodeState& state = states_.at(edge.node.get());
    if (--state.pending == 0) ready_[edge.node->sequence()] = edge.node.get();
  }

 private:
  void discover(const std::shared_ptr<Node>& root) {
    if (states_.count(root.get()) != 0) return;
    std::vector<std::shared_ptr<Node>> open = {root};
    emplace(root);
    while (!open.empty()) {
      const std::shared_ptr<Node> node = open.back();
      open.pop_back();
      for (const Edge& edge : node->inputs()) {
        if (!edge.node) continue;
        if (states_.count(edge.node.get()) == 0) {
          emplace(edge.node);
          open.push_back(edge.node);
        }
        states_.at(edge.node.get()).pending++;
      }
    }
  }

  void emplace(const std::shared_ptr<Node>& node) {
    DELTRON_CHECK(!node->spent(), "backward ran twice over one graph: '", node->name(), "' (layer ", node->scope().layer,
                  ") has run and released what it had saved");
    NodeState& state = states_[node.get()];
    state.node = node;
    state.contributions.resize(node->outputs().size());
    state.slot_given.assign(node->outputs().size(), false);
  }

  Tensor& whole_of(NodeState& state) {
    if (!state.whole.defined()) {
      const Node::SlicedInput input = *state.node->sliced_input();
      // The input may itself be a slice of something larger: then its slot is the memory.
      state.whole = destination(state.node->inputs().front(), input.shape, input.dtype);
    }
    return state.whole;
  }

  // Ascending by consumer; in place where one of two summands belongs to nobody else (a sum of two is the same both ways round).
  Tensor summed(std::vector<Contribution>& list) {
    std::stable_sort(list.begin(), list.end(), [](const Contribution& a, const Contribution& b) { return a.consumer < b.consumer; });
    if (list.size() == 2 && !sole_owner(list[0].gradient) && sole_owner(list[1].gradient)) std::swap(list[0], list[1]);
    Tensor total = std::move(list[0].gradient);
    for (std::size_t i = 1; i < list.size(); ++i) {
      const Tensor next = std::move(list[i].gradient);
      Tensor left = contiguous(ctx_, total, "gradient"), right = contiguous(ctx_, next, "gradient");
      total = Tensor();
      Tensor target = sole_owner(left) ? left : Tensor::empty(ctx_, right.shape(), right.dtype(), "gradient sum");
      add(ctx_, left, right, target);
      total = target;
    }
    list.clear();
    return total;
  }

  void run_node(Node* node) {
    NodeState state = std::move(states_.at(node));
    ScopeGuard scope(ctx_, node->scope().layer, node->scope().region, node->name().c_str());
    std::vector<Tensor> gradients(node->outputs().size());
    const bool sliced = node->sliced_input().has_value();
    for (std::size_t output = 0; output < gradients.size(); ++output) {
      OutputInfo& info = node->outputs()[output];
      std::vector<Contribution>& list = state.contributions[output];
      if (list.empty()) {
        DELTRON_CHECK(node->output_is_optional(static_cast<int>(output)), "output ", output, " of '", node->name(), "' (layer ",
                      node->scope().layer, ") received no gradient");
        continue;
      }
      gradients[output] = summed(list);
      DELTRON_CHECK(gradients[output].shape() == info.shape, "gradient ", shape_text(gradients[output].shape()), " of output ", output, " of '",
                    node->name(), "' ", shape_text(info.shape));
      DELTRON_CHECK(gradients[output].dtype() == info.dtype, "gradient of output ", output, " of '", node->name(), "' is ",
                    dtype_name(gradients[output].dtype()), ", not ", dtype_name(info.dtype));
      const std::vector<GradientHook> hooks = std::exchange(info.hooks, {});
      for (const GradientHook& hook : hooks) hook(gradients[output]);
      if (sliced) {
        const Tensor slot = node->slot(whole_of(state), static_cast<int>(output));
        if (!slot.same_view(gradients[output])) convert_heads(gradients[output], slot);
        gradients[output] = Tensor();
      }
    }
    const std::vector<Edge> edges = node->inputs();
    if (sliced) {
      const Tensor whole = std::move(state.whole);
      deliver(edges.front(), node->sequence(), whole);
    } else {
      Call call(*this, ctx_, *node, std::move(gradients));
      node->backward(ctx_, call);
      call.check_complete();
    }
    node->release();
    node->set_spent();
    for (const Edge& edge : edges) consumer_done(edge);
  }

  void convert_heads(const Tensor& from, const Tensor& to) {
    if (from.rank() < 3) {
      convert(ctx_, from, to);
      return;
    }
    const auto side_by_side = [](const Tensor& t) { return t.stride(1) == t.size(2) && t.stride(2) == 1; };
    if (side_by_side(from) && side_by_side(to)) {
      const auto rows = [](const Tensor& t) {
        return Tensor(t.storage(), t.dtype(), {t.size(0), t.size(1) * t.size(2)}, {t.stride(0), 1}, t.offset());
      };
      convert(ctx_, rows(from), rows(to));
      return;
    }
    for (std::int64_t head = 0; head < from.size(1); ++head) {
      const auto one = [&](const Tensor& t) {
        const Tensor piece = t.slice(1, head, 1);
        return Tensor(piece.storage(), piece.dtype(), {piece.size(0), piece.size(2)}, {piece.stride(0), piece.stride(2)}, piece.offset());
      };
      convert(ctx_, one(from), one(to));
    }
  }

  Context& ctx_;
  std::unordered_map<Node*, NodeState> states_;
  std::map<std::uint64_t, Node*> ready_;
};

Tensor Call::destination(int input, const Shape& shape, DType dtype) { return run_.destination(edge(input), shape, dtype); }

void Call::set_gradient(int input, const Tensor& gradient) {
  DELTRON_CHECK(gradient.defined(), "gradient of '", node_.input_names()[static_cast<std::size_t>(input)], "'");
  DELTRON_CHECK(!done_[static_cast<std::size_t>(input)], "gradient of '", node_.input_names()[static_cast<std::size_t>(input)], "' set twice");
  done_[static_cast<std::size_t>(input)] = true;
  if (edge(input).wanted()) run_.deliver(edge(input), node_.sequence(), gradient);
}

}  // namespace

void backward(Context& ctx, const std::vector<Tensor>& roots, std::vector<Tensor> gradients) {
  DELTRON_CHECK_EQ(roots.size(), gradients.size(), "one gradient a root");
  GradModeGuard no_graph(ctx, false);
  Run run(ctx);
  for (std::size_t i = 0; i < roots.size(); ++i) run.add_root(roots[i], gradients[i]);
  gradients.clear();  // the graph alone holds them now, so that nodes may write in place
  run.execute();
}

}  // namespace deltron
