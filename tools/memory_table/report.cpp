// The published arithmetic, the whole-block table and the page; see report.h.
#include "tools/memory_table/report.h"

namespace deltron::tools {
namespace {

std::string gigabytes(std::int64_t bytes) { return fixed(static_cast<double>(bytes) / 1e9, 3); }

std::int64_t sum_where(const std::vector<PublishedTensor>& tensors, bool rule, bool weight) {
  std::int64_t sum = 0;
  for (const PublishedTensor& tensor : tensors) {
    if (tensor.of_the_rule == rule && tensor.weight == weight) sum += tensor.bytes;
  }
  return sum;
}

void add_printed(Document& document, const LayerReport& layer) {
  if (!layer.setting.is_the_published_one()) return;
  DocumentTable table;
  table.head = {"figure", "printed", "arithmetic", "to the printed digit"};
  table.numbers = {1, 2, 3};
  const std::int64_t whole = bytes_of(layer.published);
  for (const PrintedFigure& figure : printed_figures()) {
    if (figure.second != layer.setting.second) continue;
    const MemoryRow row{figure.regions, {}};
    const std::int64_t bytes = figure.regions.empty() ? whole : -freed_bytes(layer.published, figure.regions);
    table.rows.push_back({row.name(), figure.mib, mib_text(bytes), mib_text(bytes, 1)});
    if (figure.percent.empty()) continue;
    const double percent = 100.0 * static_cast<double>(bytes) / static_cast<double>(whole);
    table.rows.push_back({row.name() + ", %", figure.percent, fixed(percent, 3), fixed(percent, 1)});
  }
  document.table(std::move(table));
}

void add_title(Document& document) {
  document.heading(1, "Memory tables");
  document.paragraph("Written by `deltron memory-table --all`, which answers any setting; the page in `docs` by `tools/reproduce_memory_tables.sh`. Do not edit.");
  document.paragraph(
      "**Printed** is what was published. **Published** is arithmetic over the tensors that the published baseline kept (listed below as published); "
      "at the published setting it gives every printed digit. **Its activations** is the same without the weights: the published figures count weights "
      "that projections save, and where hidden = 2 x sequence the weight of `in_proj` takes twice its output, so that \"output and weight\" and \"three "
      "outputs\" cannot be told apart at sequence 1,024. **Ours** is measured: the layer runs forward, and the storages that its graph keeps are read off "
      "the allocator. Weights are not in it: they are alive with or without a graph. A storage counts once, however many views of it are saved. Of offload only \"bytes moved > 0\" was published; ours moves the storage of "
      "the convolution's input, which holds nothing else, so that the device really frees it.");
}

}  // namespace

Document published_document(const LayerReport& layer) {
  const MemorySetting& s = layer.setting;
  Document document;
  document.heading(2, "As published: " + s.variant() + ", sequence " + thousands(s.seq_length));
  document.paragraph("What the published baseline kept for backward, by arithmetic: layer tensors in " + std::string(dtype_name(s.dtype)) +
                     ", weights that its projections saved, and the intermediates of a rule in fp32. Elements as formulas in S, B, h, Hk, Hv, K, V, "
                     "kc, the chunk length C and N = S / C chunks, rounded up.");
  DocumentTable table;
  table.head = {"tensor", "elements", "shape", "dtype", "MiB", "freed by"};
  table.numbers = {4};
  for (const PublishedTensor& tensor : layer.published) {
    table.rows.push_back({tensor.name, tensor.formula, tensor.shape, dtype_name(tensor.dtype), mib_text(tensor.bytes),
                          tensor.freed_by.empty() ? "" : "`" + tensor.freed_by + "`"});
  }
  table.rows.push_back({"sum of the layer's activations", "", "", "", mib_text(sum_where(layer.published, false, false)), ""});
  table.rows.push_back({"sum of weights", "", "", "", mib_text(sum_where(layer.published, false, true)), ""});
  table.rows.push_back({"sum of the rule's intermediates", "", "", "", mib_text(sum_where(layer.published, true, false)), ""});
  table.rows.push_back({"sum", "", "", "", mib_text(bytes_of(layer.published)), ""});
  document.table(std::move(table));
  add_printed(document, layer);
  return document;
}

Document whole_block_document(const WholeBlock& block) {
  const WholeBlockSetting& s = block.setting;
  Document document;
  document.heading(2, "The whole block of the 397B-A17B proxy");
  const double difference = block.published_before_gb - block.published_after_gb;
  document.paragraph("Published: " + fixed(block.published_before_gb, 1) + " to " + fixed(block.published_after_gb, 1) + " GB (" + fixed(-difference, 1) +
                     "), 8 GPUs, expert parallel 8, micro batch " + std::to_string(s.micro_batch_size) + ", throughput " +
                     fixed(-100 * block.published_slowdown, 0) +
                     " %. The totals cannot be derived: experts, attention, optimizer state and their sharding are not stated. The difference can, "
                     "under these assumptions:");
  DocumentTable assumptions;
  assumptions.head = {"assumption", "stated in the publication"};
  assumptions.rows = {
      {"hidden " + std::to_string(s.hidden_size) + ", " + std::to_string(s.key_heads) + " key and " + std::to_string(s.value_heads) +
           " value heads of " + std::to_string(s.key_dim) + ": the model family's sizes",
       "by the model's name"},
      {"sequence " + std::to_string(s.seq_length) + ", so " + thousands(s.tokens()) + " tokens a micro-batch", "no; the proxy script's default"},
      {"the number of GDN layers on the rank", "no; see the table"},
      {"one micro-batch alive, no pipeline, tensor and context parallel size 1", "no"},
      {"bf16 activations; g and statistics in fp32", "no"},
      {"GB of 10^9 bytes", "no"},
      {"all of the difference comes from the GDN layers", "yes, by what the region covers"}};
  document.table(std::move(assumptions));
  DocumentTable tensors;
  tensors.head = {"saved by the published block", "bytes a token", "", "freed"};
  tensors.numbers = {2};
  std::int64_t ordinary = 0, discard = 0;
  for (const BytesPerToken& tensor : whole_block_tensors(s)) {
    tensors.rows.push_back({tensor.name, tensor.formula, thousands(tensor.bytes), tensor.output ? "only if outputs are discarded" : "always"});
    discard += tensor.bytes;
    if (!tensor.output) ordinary += tensor.bytes;
  }
  tensors.rows.push_back({"sum of an ordinary region", "", thousands(ordinary), ""});
  tensors.rows.push_back({"sum of a discard-output region", "", thousands(discard), ""});
  document.table(std::move(tensors));
  document.paragraph("Ours is what `deltron plan` computes: the real layers and the real training step on the meta device, without and with "
                     "`gdn_qkv_block`, for a model of GDN layers alone (MLP of width 8, vocabulary 256), as everything else is alike in both runs.");
  DocumentTable plans;
  plans.head = {"GDN layers", "published, ordinary (GB)", "published, discard-output (GB)", "ours, kept by forward (GB)",
                "ours, peak of a step (GB)"};
  plans.numbers = {0, 1, 2, 3, 4};
  for (const WholeBlockPlan& plan : block.plans) {
    plans.rows.push_back({std::to_string(plan.layers), gigabytes(-plan.published_ordinary), gigabytes(-plan.published_discard),
                          gigabytes(-plan.ours_kept), gigabytes(-plan.ours_peak)});
  }
  plans.rows.push_back({"layers for " + fixed(-difference, 1) + " GB", fixed(block.layers_ordinary, 1), fixed(block.layers_discard, 1), "",
                        fixed(block.layers_ours, 1)});
  document.table(std::move(plans));
  document.paragraph("So the figure fits " + fixed(block.layers_discard, 1) + " layers of a discard-output block, or about " +
                     fixed(block.layers_ordinary, 0) + " of an ordinary one; neither is the script's default of 3. Candidate readings, not facts. "
                     "Ours discards outputs too, and frees less a layer because it keeps less to begin with: q and k are kept once, heads not repeated, the "
                     "gate is no copy, and no input of a norm is kept. The peak falls by one layer less than what forward keeps, as the replay needs the "
                     "memory of one layer back while it runs.");
  document.paragraph("Doing in_proj again costs " + fixed(100 * block.extra_share_of_mixer, 1) +
                     " % of the operations of a GDN mixer's training step. The published " + fixed(-100 * block.published_slowdown, 0) +
                     " % follows if GDN mixers are " + fixed(100 * block.published_slowdown / block.extra_share_of_mixer, 0) +
                     " % of the step, which a mixture of experts makes plausible.");
  return document;
}

Document document_of(const MemoryReport& report) {
  Document document;
  if (report.titled) add_title(document);
  for (const LayerReport& layer : report.layers) {
    if (!layer.tables.empty()) document.append(rows_document(layer));
  }
  for (const LayerReport& layer : report.layers) {
    if (!layer.tables.empty() && !report.summary) document.append(details_document(layer));
  }
  if (report.as_published) {
    for (const LayerReport& layer : report.layers) document.append(published_document(layer));
  }
  if (report.whole_block) document.append(whole_block_document(*report.whole_block));
  return document;
}

}  // namespace deltron::tools
