// See layer_norms.h.
#include "src/train/layer_norms.h"

#include <cmath>

namespace deltron {
namespace {

std::string layer_of(const std::string& name) {
  const std::string prefix = "decoder.layers.";
  if (name.rfind(prefix, 0) == 0) return name.substr(0, name.find('.', prefix.size()));
  const std::size_t weight = name.rfind(".weight");
  return weight == std::string::npos ? name : name.substr(0, weight);
}

}  // namespace

std::vector<std::pair<std::string, double>> layer_gradient_norms(const Session& session, const std::vector<double>& norms) {
  std::vector<std::pair<std::string, double>> layers;
  const std::vector<OptimizedParameter>& parameters = session.optimizer->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string layer = layer_of(parameters[i].name);
    if (layers.empty() || layers.back().first != layer) layers.emplace_back(layer, 0.0);
    layers.back().second += norms[i] * norms[i];
  }
  for (auto& [layer, value] : layers) value = std::sqrt(value);
  return layers;
}

}  // namespace deltron
