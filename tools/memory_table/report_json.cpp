// A report as JSON, bytes throughout; see report.h.
#include <nlohmann/json.hpp>

#include "tools/memory_table/report.h"

namespace deltron::tools {
namespace {

using Json = nlohmann::ordered_json;

Json setting_json(const MemorySetting& s) {
  return {{"variant", s.variant()},       {"hidden_size", s.hidden_size}, {"seq_length", s.seq_length}, {"micro_batch_size", s.micro_batch_size},
          {"linear_num_key_heads", s.key_heads}, {"linear_num_value_heads", s.value_heads}, {"linear_key_head_dim", s.key_dim},
          {"linear_value_head_dim", s.value_dim}, {"linear_conv_kernel_dim", s.conv_kernel}, {"params_dtype", dtype_name(s.dtype)},
          {"min_offloaded_tensor_size", s.min_offloaded_tensor_size}};
}

Json storages_json(const std::vector<KeptStorage>& storages) {
  Json list = Json::array();
  for (const KeptStorage& one : storages) {
    list.push_back({{"storage", one.key}, {"saved_as", one.saved_as}, {"shape", one.shape}, {"dtype", dtype_name(one.dtype)}, {"bytes", one.bytes}});
  }
  return list;
}

Json row_json(const LayerReport& layer, const MeasuredTable& table, const MeasuredRow& row) {
  Json json = {{"row", row.row.name()}, {"recompute", row.row.recompute}, {"offload", row.row.offload}};
  if (row.row.offload.empty() && is_a_published_row(row.row.recompute)) {
    json["published_bytes"] = row.row.recompute.empty() ? bytes_of(layer.published) : -freed_bytes(layer.published, row.row.recompute);
    if (const PrintedFigure* printed = printed_figure(layer.setting, row.row.recompute)) json["printed_mib"] = printed->mib;
  }
  if (!row.refused.empty()) {
    json["refused"] = row.refused;
    return json;
  }
  json["kept_bytes"] = row.kept_bytes;
  json["difference_bytes"] = row.kept_bytes - table.baseline().kept_bytes;
  json["kept_weight_bytes"] = row.kept_weight_bytes;
  json["device_bytes"] = row.device_bytes;
  json["host_bytes"] = row.host_bytes;
  json["storages"] = storages_json(row.kept);
  return json;
}

Json published_json(const std::vector<PublishedTensor>& tensors) {
  Json list = Json::array();
  for (const PublishedTensor& one : tensors) {
    list.push_back({{"tensor", one.name}, {"elements", one.formula}, {"shape", one.shape}, {"dtype", dtype_name(one.dtype)}, {"bytes", one.bytes},
                    {"freed_by", one.freed_by}, {"weight", one.weight}, {"rule", one.of_the_rule}});
  }
  return list;
}

Json terms_json(const std::vector<DifferenceTerm>& terms) {
  Json list = Json::array();
  for (const DifferenceTerm& term : terms) {
    list.push_back({{"tensor", term.name}, {"published_bytes", term.published}, {"ours", storages_json(term.ours)},
                    {"difference_bytes", term.difference()}, {"why", term.why}});
  }
  return list;
}

Json whole_block_json(const WholeBlock& block) {
  Json json = {{"hidden_size", block.setting.hidden_size}, {"seq_length", block.setting.seq_length}, {"micro_batch_size", block.setting.micro_batch_size},
               {"published_before_gb", block.published_before_gb}, {"published_after_gb", block.published_after_gb},
               {"layers_ordinary", block.layers_ordinary}, {"layers_discard", block.layers_discard}, {"layers_ours", block.layers_ours},
               {"extra_share_of_mixer", block.extra_share_of_mixer}};
  for (const BytesPerToken& tensor : whole_block_tensors(block.setting)) {
    json["bytes_per_token"].push_back({{"tensor", tensor.name}, {"bytes", tensor.bytes}, {"output", tensor.output}});
  }
  for (const WholeBlockPlan& plan : block.plans) {
    json["plans"].push_back({{"layers", plan.layers}, {"published_ordinary_bytes", plan.published_ordinary},
                             {"published_discard_bytes", plan.published_discard}, {"ours_kept_bytes", plan.ours_kept},
                             {"ours_peak_bytes", plan.ours_peak}});
  }
  return json;
}

}  // namespace

std::string json_of(const MemoryReport& report) {
  Json json;
  json["device"] = report.device;
  json["layers"] = Json::array();
  for (const LayerReport& layer : report.layers) {
    Json entry = {{"setting", setting_json(layer.setting)}, {"published_bytes", bytes_of(layer.published)}};
    if (report.as_published) entry["published"] = published_json(layer.published);
    for (const MeasuredTable& table : layer.tables) {
      Json measured = {{"fusion", table.fusion.name()}};
      if (!table.refused.empty()) {
        measured["refused"] = table.refused;
      } else {
        for (const MeasuredRow& row : table.rows) measured["rows"].push_back(row_json(layer, table, row));
        measured["explanation"] = terms_json(explain(layer.published, table.baseline().kept));
      }
      entry["fusions"].push_back(std::move(measured));
    }
    json["layers"].push_back(std::move(entry));
  }
  if (report.whole_block) json["whole_block"] = whole_block_json(*report.whole_block);
  return json.dump(2) + "\n";
}

}  // namespace deltron::tools
