// What the published baseline kept for backward, tensor by tensor, from arithmetic alone: a Megatron-LM GDN layer with the slow fp32
// rule of the reference code, weights that its projections saved included. Every size is a formula in S, B, h, Hk, Hv, K, V, the
// convolution's taps and the chunk length, so it answers any setting. Knows nothing of our own layers but the names of their storages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/memory_table/setting.h"

namespace deltron::tools {

struct PublishedTensor {
  std::string name;
  std::string shape;     // numbers, with factors where there are several: "16 x [1,32,128,128]"
  DType dtype = DType::F32;
  std::int64_t bytes = 0;
  std::string formula;   // in elements
  std::string freed_by;  // the region of the published rows that frees it; empty: none of the three
  bool weight = false;
  bool of_the_rule = false;       // an intermediate of the fp32 rule
  std::vector<std::string> ours;  // what stands in its place here: "region/storage" (measure.h)
  std::string why;                // why ours has another size
};

// A last chunk that is not full is padded.
std::vector<PublishedTensor> published_tensors(const MemorySetting& setting);

std::int64_t bytes_of(const std::vector<PublishedTensor>& tensors);
// The regions of a row together ("gdn_in_proj", or all three); only those three are published.
std::int64_t freed_bytes(const std::vector<PublishedTensor>& tensors, const std::vector<std::string>& regions);
// Arithmetic exists for the baseline (no region) and for sets of the three published regions.
bool is_a_published_row(const std::vector<std::string>& regions);

// A figure as it was printed, for the published setting.
struct PrintedFigure {
  bool second = false;
  std::vector<std::string> regions;  // empty: the baseline
  std::string mib;                   // "558.9", "-72.4"
  std::string percent;               // of the baseline, "-20.1"; empty where none was printed
};
const std::vector<PrintedFigure>& printed_figures();
const PrintedFigure* printed_figure(const MemorySetting& setting, const std::vector<std::string>& regions);  // null: nothing printed

}  // namespace deltron::tools
