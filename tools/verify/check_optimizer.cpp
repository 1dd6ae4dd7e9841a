// See checks.h: AdamW with global-norm clipping on given gradients.
#include <algorithm>

#include "src/optim/optimizer.h"
#include "tools/verify/checks.h"
#include "tools/verify/golden.h"

namespace deltron::tools {
namespace {

constexpr double kLimit = 1e-6;

std::vector<std::string> parameter_names(const GoldenFile& golden) {
  const std::string prefix = "param0.";
  std::vector<std::string> names;
  for (const std::string& name : golden.names()) {
    if (name.rfind(prefix, 0) == 0) names.push_back(name.substr(prefix.size()));
  }
  if (names.empty()) golden_error(golden.path(), "holds no parameter", "no tensor 'param0.*'");
  return names;
}

void require_all_names(const GoldenFile& golden, const std::vector<std::string>& parameters, std::int64_t steps) {
  std::vector<std::string> wanted;
  for (const std::string& name : parameters) {
    for (const char* prefix : {"param0.", "exp_avg.", "exp_avg_sq."}) wanted.push_back(prefix + name);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::string number = std::to_string(step);
    wanted.push_back("grad_norm." + number);
    for (const std::string& name : parameters) {
      wanted.push_back("grad." + number + "." + name);
      wanted.push_back("param." + number + "." + name);
    }
  }
  golden.require_names(wanted);
}

}  // namespace

void check_optimizer(Context& ctx, const std::string& path, FileReport& report) {
  const GoldenFile golden(path);
  const std::vector<std::string> names = parameter_names(golden);
  const std::int64_t steps = golden.size("steps");
  require_all_names(golden, names, steps);
  const std::vector<double> rates = golden.numbers("lr");
  if (static_cast<std::int64_t>(rates.size()) != steps)
    golden_error(path, "metadata 'lr' must hold one rate a step", golden.text("lr"));

  OptimizerConfig config;
  config.adam_beta1 = golden.number("beta1");
  config.adam_beta2 = golden.number("beta2");
  config.adam_eps = golden.number("eps");
  config.clip_grad = golden.number("clip_grad");
  config.weight_decay = 0;
  for (const std::string& name : names) config.weight_decay = std::max(config.weight_decay, golden.number("weight_decay." + name));
  std::vector<OptimizedParameter> parameters;
  for (const std::string& name : names) {
    const double decay = golden.number("weight_decay." + name);
    if (decay != 0 && decay != config.weight_decay) golden_error(path, "parameters have different decays", name, "one value, or 0");
    const Tensor weight = golden.tensor(ctx, "param0." + name, DType::F32);
    parameters.push_back({name, weight, Tensor::zeros(ctx, weight.shape(), DType::F32, "gradient"), decay != 0});
  }
  Optimizer optimizer(ctx, config, parameters);

  report.kind = "optimizer";
  report.dtype = dtype_name(DType::F32);
  report.kernel = ctx.device() == DeviceKind::Cuda ? "cuda.adamw" : std::string("cpu.adamw.") + instruction_set();
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::string number = std::to_string(step);
    for (const OptimizedParameter& parameter : parameters) {
      const std::string name = "grad." + number + "." + parameter.name;
      if (golden.shape(name, parameter.gradient.shape().size()) != parameter.gradient.shape()) {
        golden_error(path, "tensor '" + name + "' has another shape than its parameter");
      }
      from_doubles(ctx, parameter.gradient, golden.values(name));
    }
    optimizer.step(ctx, rates[static_cast<std::size_t>(step)]);
    const std::vector<double> expected_norm = golden.values("grad_norm." + number);
    if (expected_norm.size() != 1) golden_error(path, "tensor 'grad_norm." + number + "' must be one value");
    report.comparisons.push_back(compare_number("grad_norm." + number, optimizer.gradient_norm(ctx), expected_norm[0], kLimit));
    for (const OptimizedParameter& parameter : parameters) {
      report.comparisons.push_back(golden.compare(ctx, "param." + number + "." + parameter.name, parameter.weight, kLimit));
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    report.comparisons.push_back(golden.compare(ctx, "exp_avg." + names[i], optimizer.state()[i].exp_avg, kLimit));
    report.comparisons.push_back(golden.compare(ctx, "exp_avg_sq." + names[i], optimizer.state()[i].exp_avg_sq, kLimit));
  }
}

}  // namespace deltron::tools
