// The memory tables as one report: for every variant and sequence length the published arithmetic and what our layer keeps, with and
// without fusions; as a document (text or Markdown) or as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/memory_table/document.h"
#include "tools/memory_table/explain.h"
#include "tools/memory_table/whole_block.h"

namespace deltron::tools {

struct LayerReport {
  MemorySetting setting;
  std::vector<PublishedTensor> published;
  std::vector<MeasuredTable> tables;  // one a fusion; empty where only the published arithmetic was asked for
};

struct MemoryReport {
  std::string device;  // that our layers ran on
  std::vector<LayerReport> layers;
  bool titled = false;        // a page of its own: a title, and what its words mean
  bool as_published = false;  // list the published tensors
  bool summary = false;       // rows only, no storages and no explanations
  std::optional<WholeBlock> whole_block;
};

Document rows_document(const LayerReport& layer);     // one line a row
Document details_document(const LayerReport& layer);  // storages, what each row frees, and every difference to the published baseline
Document published_document(const LayerReport& layer);
Document whole_block_document(const WholeBlock& block);
Document document_of(const MemoryReport& report);
std::string json_of(const MemoryReport& report);

}  // namespace deltron::tools
