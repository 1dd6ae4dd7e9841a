// See hf_model.h.
#include "src/checkpoint/hf_model.h"

#include <cstring>
#include <string_view>

#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/reader.h"

namespace deltron {
namespace {

bool begins_with(const std::string& text, std::string_view prefix) { return text.compare(0, prefix.size(), prefix) == 0; }

bool is_passed_over(const std::string& name) {
  return begins_with(name, "mtp.") || begins_with(name, "model.mtp.") || begins_with(name, "visual.") ||
         begins_with(name, "model.visual.");
}

}  // namespace

std::string plain_hf_name(const std::string& stored) {
  for (const std::string_view prefix : {"model.language_model.", "language_model.model."}) {
    if (begins_with(stored, prefix)) return "model." + stored.substr(prefix.size());
  }
  return stored;
}

HfModel::HfModel(const std::string& folder)
    : path_(folder), config_(read_hf_config(join_path(folder, "config.json"))), pieces_(hf_pieces(config_)), weights_(folder) {
  for (const std::string& stored : weights_.names()) {
    if (is_passed_over(stored)) {
      passed_over_.push_back(stored);
      continue;
    }
    const auto [place, added] = stored_names_.emplace(plain_hf_name(stored), stored);
    if (!added) {
      throw Error(ErrorCode::HfTensorNames, ErrorText{"two tensors have one meaning", folder, place->second + " and " + stored});
    }
  }
  if (!config_.untie_embeddings_and_output_weights && stored_names_.count("lm_head.weight") != 0) check_tied_output();

  std::vector<std::string> wanted;
  for (const LogicalPiece& piece : pieces_) wanted.push_back(piece.hf);
  std::vector<std::string> found;
  for (const auto& [plain, stored] : stored_names_) {
    if (plain != "lm_head.weight" || config_.untie_embeddings_and_output_weights) found.push_back(plain);
  }
  const std::string faults = compare_names(wanted, found);
  if (!faults.empty()) {
    throw Error(ErrorCode::HfTensorNames, ErrorText{"holds other tensors than its config says", folder, faults, "",
                                                    "use weights and config.json of the same model"});
  }
  for (const LogicalPiece& piece : pieces_) {
    const std::string& stored = stored_names_.at(piece.hf);
    const HostView view = weights_.view(stored);
    if (view.shape == piece.hf_shape) continue;
    throw Error(ErrorCode::HfTensorShape, ErrorText{"tensor '" + stored + "' has another shape", weights_.file_of(stored).path(),
                                                    "found " + shape_text(view.shape) + ", expected " + shape_text(piece.hf_shape),
                                                    "", "use weights and config.json of the same model"});
  }
}

// Some exporters write the tied matrix twice; that is fine as long as both are the same.
void HfModel::check_tied_output() const {
  const auto embedding = stored_names_.find("model.embed_tokens.weight");
  if (embedding == stored_names_.end()) return;  // reported as missing
  const HostView a = weights_.view(embedding->second);
  const HostView b = weights_.view(stored_names_.at("lm_head.weight"));
  if (a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes) == 0) return;
  throw Error(ErrorCode::HfTensorNames,
              ErrorText{"lm_head.weight differs from the embedding", path_, "", "tie_word_embeddings is true",
                        "set tie_word_embeddings to false in config.json if the output is a matrix of its own"});
}

std::vector<std::string> HfModel::names() const {
  std::vector<std::string> names;
  for (const LogicalPiece& piece : pieces_) names.push_back(piece.logical);
  return names;
}

HostArray HfModel::read_logical(const std::string& name) const {
  for (const LogicalPiece& piece : pieces_) {
    if (piece.logical == name) return gather_logical(piece, weights_.view(stored_names_.at(piece.hf)));
  }
  throw Error(ErrorCode::TensorNotFound,
              ErrorText{"no tensor '" + name + "'", path_, "", "", "nearest names: " + nearest_names(name, names())});
}

}  // namespace deltron
