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
  for (const ParameterPtr& parameter : session.model->parameters().all()) {
    const std::string layer = layer_of(parameter->spec.name);
    if (layers.empty() || layers.back().first != layer) layers.emplace_back(layer, 0.0);
  }
  const std::vector<std::string>& names = session.optimizer->normed_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string layer = layer_of(names[i]);
    for (auto& [name, value] : layers) {
      if (name == layer) value += norms[i] * norms[i];
    }
  }
  if (session.channel->size() > 1) {
    std::vector<double> mine;
    for (auto& [layer, value] : layers) {
      mine.push_back(value);
      value = 0;
    }
    session.channel->begin_numbers(mine);
    for (const std::vector<double>& rank : session.channel->finish_numbers()) {
      for (std::size_t i = 0; i < layers.size(); ++i) layers[i].second += rank[i];
    }
  }
  for (auto& [layer, value] : layers) value = std::sqrt(value);
  return layers;
}

}  // namespace deltron
