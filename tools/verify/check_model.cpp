// See checks.h: a whole model out of a Hugging Face folder, gradients compared in that layout.
#include <cmath>
#include <map>
#include <memory>

#include "src/autograd/engine.h"
#include "src/base/file.h"
#include "src/checkpoint/hf_model.h"
#include "src/checkpoint/json_strict.h"
#include "src/checkpoint/reader.h"
#include "src/model/hybrid_language_model.h"
#include "src/optim/optimizer.h"
#include "tools/verify/checks.h"
#include "tools/verify/golden.h"
#include "tools/verify/rule_kernel.h"

namespace deltron::tools {
namespace {

constexpr double kLogitsLimit = 1e-4, kGradientLimit = 1e-3;
constexpr double kEarlyLossLimit = 2e-4, kLateLossLimit = 5e-3;  // of AdamW losses: the first five, the others
constexpr std::int64_t kEarlyLosses = 5;
constexpr ForwardMode kEvaluation = {};

struct Batch {
  Tensor ids, labels;  // [T] I32; the last token of a document has no label
  LayoutPtr layout;
  double scale = 0;  // of a sum of token losses, to the mean over labels
};

Batch make_batch(Context& ctx, const GoldenFile& golden, std::int64_t vocab_size) {
  const std::vector<std::int64_t> sizes = golden.shape("input_ids", 2);  // [documents, length]
  if (sizes[0] < 1 || sizes[1] < 2)
    golden_error(golden.path(), "input_ids must hold at least two tokens a document", shape_text(sizes));
  const std::vector<std::int64_t> ids = golden.integers("input_ids");
  std::vector<double> given, next;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size)
      golden_error(golden.path(), "input_ids holds an id outside the vocabulary", std::to_string(ids[i]));
    given.push_back(static_cast<double>(ids[i]));
    const bool last = static_cast<std::int64_t>(i + 1) % sizes[1] == 0;
    next.push_back(last ? -1.0 : static_cast<double>(ids[i + 1]));
  }
  Batch batch;
  batch.layout = std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx, sizes[0], sizes[1]));
  batch.ids = make_tensor(ctx, {batch.layout->tokens()}, DType::I32, given, "ids", MemoryTag::Data);
  batch.labels = make_tensor(ctx, {batch.layout->tokens()}, DType::I32, next, "labels", MemoryTag::Data);
  batch.scale = 1.0 / static_cast<double>(sizes[0] * (sizes[1] - 1));
  return batch;
}

void load_weights(Context& ctx, const HfModel& hf, HybridLanguageModel& model) {
  for (const LogicalTensor& logical : model.parameters().logical()) {
    from_doubles(ctx, logical.value(), to_doubles(hf.read_logical(logical.name).view()));
  }
}

// Mean loss; its gradients are left in the main gradients.
double loss_and_gradients(Context& ctx, HybridLanguageModel& model, const Batch& batch) {
  model.parameters().zero_main_gradients(ctx);
  const Tensor loss = model.loss(ctx, batch.ids, batch.labels, batch.layout, kEvaluation, batch.scale);
  const double value = to_doubles(ctx, loss)[0];
  const Tensor one = Tensor::empty(ctx, loss.shape(), loss.dtype(), "d_loss");
  from_doubles(ctx, one, {1.0});
  backward(ctx, {loss}, {one});
  return value;
}

// Name in the Hugging Face layout -> values.
std::map<std::string, std::vector<double>> gradients_in_hf_layout(Context& ctx, const HfModel& hf, HybridLanguageModel& model) {
  std::vector<HostArray> arrays;
  for (const LogicalTensor& logical : model.parameters().logical()) {
    const Tensor gradient = logical.slice(logical.parameter->main_gradient);
    arrays.push_back(make_array(logical.name, gradient.dtype(), gradient.shape()));
    copy_to_host(ctx, gradient, arrays.back().bytes.data());
  }
  std::vector<HostView> views;
  for (const HostArray& array : arrays) views.push_back(array.view());
  std::map<std::string, std::vector<double>> result;
  for (const HostArray& array : to_hf_layout(hf.pieces(), views)) result[array.name] = to_doubles(array.view());
  return result;
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

void compare_gradients(Context& ctx, const GoldenFile& golden, const std::string& norms_path, const HfModel& hf,
                       HybridLanguageModel& model, FileReport& report) {
  const std::string prefix = "grad.";
  const auto ours = gradients_in_hf_layout(ctx, hf, model);
  std::vector<std::string> names;
  for (const auto& entry : ours) names.push_back(entry.first);
  for (const std::string& name : golden.names()) {
    if (name.rfind(prefix, 0) != 0) continue;
    const auto found = ours.find(name.substr(prefix.size()));
    if (found == ours.end()) {
      golden_error(golden.path(), "unknown tensor '" + name + "'", "nearest: " + nearest_names(name.substr(prefix.size()), names));
    }
    const std::vector<double> expected = golden.values(name);
    if (expected.size() != found->second.size()) golden_error(golden.path(), "tensor '" + name + "' has the wrong shape");
    report.comparisons.push_back(compare_values(name, found->second, expected, kGradientLimit));
  }
  const nlohmann::json norms = parse_json_strict(read_file(norms_path), norms_path, ErrorCode::GoldenFileInvalid);
  if (!norms.is_object()) golden_error(norms_path, "is not an object");
  std::vector<std::string> given;
  for (const auto& entry : norms.items()) {
    if (!entry.value().is_number()) golden_error(norms_path, "'" + entry.key() + "' must be a number", entry.value().dump());
    given.push_back(entry.key());
  }
  const std::string faults = compare_names(names, given);
  if (!faults.empty()) golden_error(norms_path, "names other tensors than the model has", faults);
  for (const auto& [name, values] : ours) {
    report.comparisons.push_back(
        compare_number("norm of grad." + name, norm_of(values), norms.at(name).get<double>(), kGradientLimit));
  }
}

// Losses before each of the updates; the gradients of the first are in place.
void compare_updates(Context& ctx, const GoldenFile& golden, const Batch& batch, double first_loss, HybridLanguageModel& model,
                     FileReport& report) {
  OptimizerConfig config;
  config.adam_beta1 = golden.number("beta1");
  config.adam_beta2 = golden.number("beta2");
  config.adam_eps = golden.number("eps");
  config.clip_grad = golden.number("clip_grad");
  config.weight_decay = golden.number("weight_decay");
  config.decay_all_parameters = true;
  std::vector<OptimizedParameter> parameters;
  for (const ParameterPtr& parameter : model.parameters().all()) {
    parameters.push_back({parameter->spec.name, parameter->value, parameter->main_gradient, parameter->spec.weight_decay});
  }
  Optimizer optimizer(ctx, config, parameters);
  const std::vector<double> expected = golden.values("adamw_losses");
  if (static_cast<std::int64_t>(expected.size()) != golden.size("steps"))
    golden_error(golden.path(), "adamw_losses must hold one loss a step");
  double loss = first_loss;
  for (std::size_t step = 0; step < expected.size(); ++step) {
    if (step > 0) {
      optimizer.step(ctx, golden.number("lr"));
      loss = loss_and_gradients(ctx, model, batch);
    }
    const double limit = static_cast<std::int64_t>(step) < kEarlyLosses ? kEarlyLossLimit : kLateLossLimit;
    report.comparisons.push_back(compare_number("adamw_losses." + std::to_string(step), loss, expected[step], limit));
  }
}

}  // namespace

void check_model(Context& ctx, const std::string& folder, FileReport& report) {
  const HfModel hf(folder);
  const GoldenFile golden(join_path(folder, "expected.safetensors"));
  std::vector<std::string> wanted = {"input_ids", "logits", "loss", "adamw_losses"};
  for (const std::string& name : golden.names()) {
    if (name.rfind("grad.", 0) == 0) wanted.push_back(name);  // each is checked against the model's names below
  }
  golden.require_names(wanted);
  HybridLanguageModel model(ctx, hf.config(), DType::F32, true, 0);
  load_weights(ctx, hf, model);
  const Batch batch = make_batch(ctx, golden, hf.config().vocab_size);

  report.kind = "model";
  report.dtype = dtype_name(DType::F32);
  const TransformerConfig& sizes = hf.config();
  report.kernel = rule_kernel_name(
      ctx, false, {sizes.linear_num_key_heads, sizes.linear_num_value_heads, sizes.linear_key_head_dim, sizes.linear_value_head_dim}, DType::F32);
  {
    const GradModeGuard no_graph(ctx, false);
    report.comparisons.push_back(
        golden.compare(ctx, "logits", model.logits(ctx, batch.ids, batch.layout, kEvaluation), kLogitsLimit));
  }
  const double loss = loss_and_gradients(ctx, model, batch);
  const std::vector<double> expected_loss = golden.values("loss");
  if (expected_loss.size() != 1) golden_error(golden.path(), "tensor 'loss' must be one value");
  report.comparisons.push_back(compare_number("loss", loss, expected_loss[0], kEarlyLossLimit));
  compare_gradients(ctx, golden, join_path(folder, "grad_norms.json"), hf, model, report);
  compare_updates(ctx, golden, batch, loss, model, report);
}

}  // namespace deltron::tools
