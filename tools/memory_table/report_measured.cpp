// The measured tables of a report; see report.h.
#include <algorithm>

#include "tools/memory_table/goals.h"
#include "tools/memory_table/report.h"

namespace deltron::tools {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string storages_text(const std::vector<KeptStorage>& storages) {
  std::vector<std::string> parts;
  for (const KeptStorage& storage : storages) parts.push_back("`" + storage.key + "` " + mib_text(storage.bytes));
  return parts.empty() ? "nothing" : joined(parts, ", ");
}

std::string share(std::int64_t part, std::int64_t whole) {
  return fixed(100.0 * static_cast<double>(part) / static_cast<double>(whole), 1) + " %";
}

std::string published_cell(const LayerReport& layer, const MemoryRow& row, bool weights) {
  if (!row.offload.empty() || !is_a_published_row(row.recompute)) return "";
  std::vector<PublishedTensor> tensors = layer.published;
  if (!weights) tensors.erase(std::remove_if(tensors.begin(), tensors.end(), [](const auto& one) { return one.weight; }), tensors.end());
  const std::int64_t whole = bytes_of(tensors);
  if (row.recompute.empty()) return mib_text(whole);
  const std::int64_t freed = freed_bytes(tensors, row.recompute);
  return signed_mib(-freed) + " (" + share(freed, whole) + ")";
}

std::string printed_cell(const LayerReport& layer, const MemoryRow& row) {
  if (row.recompute.empty() && row.offload == std::vector<std::string>{"gdn_qkv"}) return "moved > 0";
  const PrintedFigure* printed = row.offload.empty() ? printed_figure(layer.setting, row.recompute) : nullptr;
  if (printed == nullptr) return "";
  return printed->mib + (printed->percent.empty() ? "" : " (" + printed->percent + " %)");
}

std::string our_cell(const MeasuredTable& table, std::size_t index) {
  const MeasuredRow& row = table.rows[index];
  if (!row.refused.empty()) return row.refused.substr(0, row.refused.find(','));
  const std::int64_t whole = table.baseline().kept_bytes;
  if (index == 0) return mib_text(whole);
  std::string text = signed_mib(row.kept_bytes - whole) + " (" + share(whole - row.kept_bytes, whole) + ")";
  if (row.host_bytes > 0) text += ", host " + signed_mib(row.host_bytes);
  return text;
}

std::string title_of(const MemorySetting& setting) { return setting.variant() + ", sequence " + thousands(setting.seq_length); }

void add_rows(Document& document, const LayerReport& layer) {
  const bool printed = layer.setting.is_the_published_one();
  DocumentTable table;
  table.head = {"row"};
  if (printed) table.head.push_back("printed");
  table.head.push_back("published");
  table.head.push_back("its activations");
  std::vector<const MeasuredTable*> ran;
  for (const MeasuredTable& one : layer.tables) {
    if (!one.refused.empty()) continue;
    ran.push_back(&one);
    table.head.push_back("ours, " + one.fusion.name());
  }
  for (std::size_t column = 1; column < table.head.size(); ++column) table.numbers.push_back(column);
  const std::vector<MemoryRow> rows = all_rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> line = {rows[i].offload.empty() && rows[i].recompute.size() != 1 ? rows[i].name() : "`" + rows[i].name() + "`"};
    if (printed) line.push_back(printed_cell(layer, rows[i]));
    line.push_back(published_cell(layer, rows[i], true));
    line.push_back(published_cell(layer, rows[i], false));
    for (const MeasuredTable* one : ran) line.push_back(our_cell(*one, i));
    table.rows.push_back(std::move(line));
  }
  document.table(std::move(table));
  std::vector<std::string> refusals;  // each once
  for (const MeasuredTable& one : layer.tables) {
    std::vector<std::string> here = {one.refused.empty() ? "" : one.fusion.name() + ": " + one.refused};
    for (const MeasuredRow& row : one.rows) here.push_back(row.refused.empty() ? "" : row.row.name() + ": " + row.refused);
    for (const std::string& refusal : here) {
      if (!refusal.empty() && std::find(refusals.begin(), refusals.end(), refusal) == refusals.end()) refusals.push_back(refusal);
    }
  }
  if (!refusals.empty()) document.paragraph(joined(refusals, ". ") + ".");
}

void add_goals(Document& document, const LayerReport& layer) {
  const MeasuredTable* judged = judged_table(layer.tables);
  if (judged == nullptr || !layer.setting.is_the_published_one()) return;
  document.heading(3, "Our goals (" + judged->fusion.name() + ")");
  DocumentTable table;
  table.head = {"goal", "MiB", "ours", "met"};
  table.numbers = {1, 2};
  for (const GoalResult& result : goal_results(*judged)) {
    table.rows.push_back({result.goal, result.wanted, result.ours, result.ours.empty() ? "not in this version" : result.met ? "yes" : "no"});
  }
  document.table(std::move(table));
}

void add_storages(Document& document, const MeasuredTable& measured) {
  DocumentTable table;
  table.head = {"storage", "saved first as", "shape", "dtype", "MiB", "freed by"};
  table.numbers = {4};
  for (const KeptStorage& storage : measured.baseline().kept) {
    table.rows.push_back({"`" + storage.key + "`", "`" + storage.saved_as + "`", shape_text(storage.shape), dtype_name(storage.dtype),
                          mib_text(storage.bytes), joined(measured.freed_by(storage), ", ")});
  }
  table.rows.push_back({"sum", "", "", "", mib_text(measured.baseline().kept_bytes), ""});
  document.table(std::move(table));
}

void add_freed(Document& document, const MeasuredTable& measured) {
  DocumentTable table;
  table.head = {"row", "kept", "device", "host", "frees", "keeps instead"};
  table.numbers = {1, 2, 3};
  for (const MeasuredRow& row : measured.rows) {
    if (!row.refused.empty()) continue;
    table.rows.push_back({row.row.name(), mib_text(row.kept_bytes), mib_text(row.device_bytes), mib_text(row.host_bytes),
                          storages_text(measured.freed(row)), storages_text(measured.added(row))});
  }
  document.table(std::move(table));
}

std::vector<std::string> term_line(const DifferenceTerm& term) {
  return {term.name, mib_text(term.published), term.ours.empty() ? "" : storages_text(term.ours), mib_text(term.our_bytes),
          signed_mib(term.difference()), term.why};
}

// Small tensors of the rule fill a page; those that ours has nothing in place of are told as one line.
void add_explanation(Document& document, const LayerReport& layer, const MeasuredTable& measured) {
  DocumentTable table;
  table.head = {"published tensor", "MiB", "ours", "MiB", "difference", "why"};
  table.numbers = {1, 3, 4};
  std::int64_t published = 0, ours = 0, rule = 0;
  std::size_t rule_tensors = 0;
  for (const DifferenceTerm& term : explain(layer.published, measured.baseline().kept)) {
    published += term.published;
    ours += term.our_bytes;
    if (term.of_the_rule && term.ours.empty()) {
      rule += term.published;
      ++rule_tensors;
    } else {
      table.rows.push_back(term_line(term));
    }
  }
  table.rows.push_back({std::to_string(rule_tensors) + " other fp32 intermediates of the rule", mib_text(rule), "", mib_text(0), signed_mib(-rule),
                        "the rule's backward computes them again, chunk by chunk (listed one by one by --as-published)"});
  table.rows.push_back({"sum", mib_text(published), "", mib_text(ours), signed_mib(ours - published), ""});
  document.table(std::move(table));
}

void add_row_explanations(Document& document, const LayerReport& layer, const MeasuredTable& measured) {
  DocumentTable table;
  table.head = {"row", "published tensor", "MiB", "ours", "MiB", "difference", "why"};
  table.numbers = {2, 4, 5};
  for (const MeasuredRow& row : measured.rows) {
    if (!row.refused.empty() || !row.row.offload.empty() || row.row.recompute.size() != 1 || !is_a_published_row(row.row.recompute)) continue;
    std::int64_t published = 0, ours = 0;
    for (const DifferenceTerm& term : explain_freed(layer.published, row.row.recompute, measured.freed(row))) {
      std::vector<std::string> line = term_line(term);
      line.insert(line.begin(), "`" + row.row.name() + "`");
      table.rows.push_back(std::move(line));
      published += term.published;
      ours += term.our_bytes;
    }
    table.rows.push_back({"`" + row.row.name() + "`", "sum freed", mib_text(published), "", mib_text(ours), signed_mib(ours - published), ""});
  }
  document.table(std::move(table));
}

}  // namespace

Document rows_document(const LayerReport& layer) {
  const MemorySetting& s = layer.setting;
  Document document;
  document.heading(2, title_of(s));
  document.paragraph("One layer, " + std::string(dtype_name(s.dtype)) + ", hidden " + std::to_string(s.hidden_size) + ", " +
                     std::to_string(s.key_heads) + " key and " + std::to_string(s.value_heads) + " value heads of " + std::to_string(s.key_dim) +
                     " and " + std::to_string(s.value_dim) + ", convolution of " + std::to_string(s.conv_kernel) + ", micro batch " +
                     std::to_string(s.micro_batch_size) + ". MiB kept for backward; rows below the baseline are differences to it, with their share.");
  add_rows(document, layer);
  add_goals(document, layer);
  return document;
}

Document details_document(const LayerReport& layer) {
  Document document;
  for (const MeasuredTable& table : layer.tables) {
    if (!table.refused.empty()) continue;
    document.heading(2, "Storages: " + title_of(layer.setting) + ", " + table.fusion.name());
    document.paragraph("What the graph keeps without recompute:");
    add_storages(document, table);
    document.paragraph("Each row: what is kept, what is alive on the device and on the host, what is freed, and what is kept instead.");
    add_freed(document, table);
    document.paragraph("The baseline beside the published one, tensor by tensor:");
    add_explanation(document, layer, table);
    document.paragraph("The published rows, tensor by tensor:");
    add_row_explanations(document, layer, table);
  }
  return document;
}

}  // namespace deltron::tools
