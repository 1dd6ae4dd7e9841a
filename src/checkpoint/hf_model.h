// A Hugging Face model folder: its config, its weights under logical names. Names and shapes are checked when it is opened.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/checkpoint/hf_map.h"
#include "src/checkpoint/safetensors.h"

namespace deltron {

class HfModel {
 public:
  // Throws HfTensorNames (unknown or missing tensors, with nearest names) or HfTensorShape. Vision and multi-token-prediction
  // tensors are passed over.
  explicit HfModel(const std::string& folder);
  const TransformerConfig& config() const { return config_; }
  const std::vector<LogicalPiece>& pieces() const { return pieces_; }
  std::vector<std::string> names() const;  // logical, in the order of the layers
  const std::vector<std::string>& passed_over() const { return passed_over_; }
  // In the dtype of the file.
  HostArray read_logical(const std::string& name) const;

 private:
  void check_tied_output() const;
  std::string path_;
  TransformerConfig config_;
  std::vector<LogicalPiece> pieces_;
  SafetensorsFolder weights_;
  std::map<std::string, std::string> stored_names_;  // plain Hugging Face name to the name in the files
  std::vector<std::string> passed_over_;
};

// "model.language_model.X" and "language_model.model.X" become "model.X"; others stay.
std::string plain_hf_name(const std::string& stored);

}  // namespace deltron
