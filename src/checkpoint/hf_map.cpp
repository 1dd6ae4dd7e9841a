// See hf_map.h. Layouts: q_proj holds, head by head, d query rows and then d gate rows; in_proj_qkv and conv1d hold all q, all k,
// all v.
#include "src/checkpoint/hf_map.h"

#include <cstring>
#include <map>

#include "src/base/check.h"
#include "src/checkpoint/reader.h"

namespace deltron {
namespace {

using Shape = std::vector<std::int64_t>;

class MapBuilder {
 public:
  explicit MapBuilder(const TransformerConfig& config) : c_(config) {}

  std::vector<LogicalPiece> build() {
    whole("embedding.word_embeddings.weight", "model.embed_tokens.weight", {c_.vocab_size, c_.hidden_size});
    for (std::int64_t layer = 0; layer < c_.num_layers; ++layer) add_layer(layer);
    whole("decoder.final_layernorm.weight", "model.norm.weight", {c_.hidden_size});
    if (c_.untie_embeddings_and_output_weights) whole("output_layer.weight", "lm_head.weight", {c_.vocab_size, c_.hidden_size});
    return std::move(pieces_);
  }

 private:
  struct Section {
    const char* name;
    std::int64_t rows;
  };

  void whole(const std::string& logical, const std::string& hf, const Shape& shape) {
    pieces_.push_back({logical, shape, hf, shape, {0, shape[0], shape[0], 1}});
  }
  // `row` is the shape of one row in the Hugging Face tensor, `logical_row` in ours.
  void sections(const std::string& logical, const std::string& hf, const std::vector<Section>& parts, const Shape& row,
                const Shape& logical_row) {
    std::int64_t total = 0;
    for (const Section& part : parts) total += part.rows;
    std::int64_t first = 0;
    for (const Section& part : parts) {
      Shape shape = {part.rows};
      shape.insert(shape.end(), logical_row.begin(), logical_row.end());
      Shape hf_shape = {total};
      hf_shape.insert(hf_shape.end(), row.begin(), row.end());
      pieces_.push_back({logical + part.name, shape, hf, hf_shape, {first, part.rows, part.rows, 1}});
      first += part.rows;
    }
  }

  void add_layer(std::int64_t layer) {
    const std::string ours = "decoder.layers." + std::to_string(layer) + ".";
    const std::string theirs = "model.layers." + std::to_string(layer) + ".";
    const std::int64_t h = c_.hidden_size;
    const std::int64_t ffn = c_.ffn_hidden_size;
    whole(ours + "input_layernorm.weight", theirs + "input_layernorm.weight", {h});
    if (is_linear_layer(c_, layer)) {
      add_gdn(ours + "self_attention.", theirs + "linear_attn.");
    } else {
      add_softmax(ours + "self_attention.", theirs + "self_attn.");
    }
    whole(ours + "pre_mlp_layernorm.weight", theirs + "post_attention_layernorm.weight", {h});
    whole(ours + "mlp.linear_fc1.weight.gate", theirs + "mlp.gate_proj.weight", {ffn, h});
    whole(ours + "mlp.linear_fc1.weight.up", theirs + "mlp.up_proj.weight", {ffn, h});
    whole(ours + "mlp.linear_fc2.weight", theirs + "mlp.down_proj.weight", {h, ffn});
  }

  void add_gdn(const std::string& ours, const std::string& theirs) {
    const std::int64_t h = c_.hidden_size;
    const std::int64_t value_heads = c_.linear_num_value_heads;
    const std::int64_t keys = c_.linear_num_key_heads * c_.linear_key_head_dim;
    const std::int64_t values = value_heads * c_.linear_value_head_dim;
    const std::vector<Section> qkv = {{"query", keys}, {"key", keys}, {"value", values}};
    sections(ours + "in_proj.weight.", theirs + "in_proj_qkv.weight", qkv, {h}, {h});
    whole(ours + "in_proj.weight.z", theirs + "in_proj_z.weight", {values, h});
    whole(ours + "in_proj.weight.beta", theirs + "in_proj_b.weight", {value_heads, h});
    whole(ours + "in_proj.weight.alpha", theirs + "in_proj_a.weight", {value_heads, h});
    sections(ours + "conv1d.weight.", theirs + "conv1d.weight", qkv, {1, c_.linear_conv_kernel_dim}, {c_.linear_conv_kernel_dim});
    whole(ours + "A_log", theirs + "A_log", {value_heads});
    whole(ours + "dt_bias", theirs + "dt_bias", {value_heads});
    whole(ours + "out_norm.weight", theirs + "norm.weight", {c_.linear_value_head_dim});
    whole(ours + "out_proj.weight", theirs + "out_proj.weight", {h, values});
  }

  void add_softmax(const std::string& ours, const std::string& theirs) {
    const std::int64_t h = c_.hidden_size;
    const std::int64_t d = head_dim(c_);
    const std::int64_t heads = c_.num_attention_heads;
    const std::int64_t kv_rows = query_groups(c_) * d;
    const std::string fused = ours + "linear_qkv.weight.";
    pieces_.push_back({fused + "query", {heads * d, h}, theirs + "q_proj.weight", {2 * heads * d, h}, {0, d, 2 * d, heads}});
    pieces_.push_back({fused + "gate", {heads * d, h}, theirs + "q_proj.weight", {2 * heads * d, h}, {d, d, 2 * d, heads}});
    whole(fused + "key", theirs + "k_proj.weight", {kv_rows, h});
    whole(fused + "value", theirs + "v_proj.weight", {kv_rows, h});
    whole(ours + "q_layernorm.weight", theirs + "q_norm.weight", {d});
    whole(ours + "k_layernorm.weight", theirs + "k_norm.weight", {d});
    whole(ours + "linear_proj.weight", theirs + "o_proj.weight", {h, heads * d});
  }

  const TransformerConfig& c_;
  std::vector<LogicalPiece> pieces_;
};

void require(bool good, const char* key, const char* value, const char* rule) {
  if (good) return;
  throw Error(ErrorCode::HfConfigUnsupported,
              ErrorText{std::string(key) + " = " + value + " has no Qwen3.5 form", "model", "", std::string(key) + " = " + rule});
}

// Calls move(row of the Hugging Face tensor, row of the logical tensor, count).
template <class F>
void for_each_run(const RowRanges& rows, const F& move) {
  for (std::int64_t run = 0; run < rows.runs; ++run) move(rows.first + run * rows.stride, run * rows.run_rows, rows.run_rows);
}

std::size_t row_bytes(const LogicalPiece& piece, DType dtype) {
  return static_cast<std::size_t>(element_count(piece.shape) / piece.rows.rows()) * dtype_size(dtype);
}

void check_shape(const std::string& name, const Shape& found, const Shape& expected) {
  if (found == expected) return;
  throw Error(ErrorCode::HfTensorShape, ErrorText{"tensor '" + name + "' has another shape", "",
                                                  "found " + shape_text(found) + ", expected " + shape_text(expected), "",
                                                  "use weights and config.json of the same model"});
}

}  // namespace

std::vector<LogicalPiece> hf_pieces(const TransformerConfig& config) {
  require(config.experimental_attention_variant != ExperimentalAttentionVariant::Gdn2, "experimental_attention_variant", "gdn2",
          "gdn");
  const bool softmax = softmax_layer_count(config) > 0;
  require(!softmax || config.attention_output_gate, "attention_output_gate", "false", "true");
  require(!softmax || config.qk_layernorm, "qk_layernorm", "false", "true");
  require(config.layernorm_zero_centered_gamma, "layernorm_zero_centered_gamma", "false", "true");
  require(!config.linear_output_norm_zero_centered_gamma, "linear_output_norm_zero_centered_gamma", "true", "false");
  return MapBuilder(config).build();
}

HostArray gather_logical(const LogicalPiece& piece, const HostView& hf) {
  check_shape(hf.name, hf.shape, piece.hf_shape);
  HostArray logical = make_array(piece.logical, hf.dtype, piece.shape);
  const std::size_t bytes = row_bytes(piece, hf.dtype);
  for_each_run(piece.rows, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    std::memcpy(logical.bytes.data() + static_cast<std::size_t>(to) * bytes, hf.data + static_cast<std::size_t>(from) * bytes,
                static_cast<std::size_t>(count) * bytes);
  });
  return logical;
}

std::vector<HostArray> to_hf_layout(const std::vector<LogicalPiece>& pieces, const std::vector<HostView>& logical) {
  std::map<std::string, const HostView*> given;
  std::vector<std::string> given_names;
  std::vector<std::string> wanted;
  for (const HostView& view : logical) {
    given.emplace(view.name, &view);
    given_names.push_back(view.name);
  }
  for (const LogicalPiece& piece : pieces) wanted.push_back(piece.logical);
  const std::string faults = compare_names(wanted, given_names);
  if (!faults.empty()) {
    throw Error(ErrorCode::CheckpointTensorNames, ErrorText{"holds other tensors than the model", "export", faults, "",
                                                            "use the model configuration that the weights were made with"});
  }
  std::vector<HostArray> result;
  std::map<std::string, std::size_t> places;
  for (const LogicalPiece& piece : pieces) {
    const HostView& view = *given.at(piece.logical);
    check_shape(piece.logical, view.shape, piece.shape);
    const auto [place, added] = places.emplace(piece.hf, result.size());
    if (added) result.push_back(make_array(piece.hf, view.dtype, piece.hf_shape));
    HostArray& target = result[place->second];
    DELTRON_CHECK(target.dtype == view.dtype, piece.hf, " would be made of two dtypes");
    const std::size_t bytes = row_bytes(piece, view.dtype);
    for_each_run(piece.rows, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      std::memcpy(target.bytes.data() + static_cast<std::size_t>(to) * bytes, view.data + static_cast<std::size_t>(from) * bytes,
                  static_cast<std::size_t>(count) * bytes);
    });
  }
  return result;
}

}  // namespace deltron
