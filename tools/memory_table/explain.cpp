// See explain.h.
#include "tools/memory_table/explain.h"

#include <algorithm>
#include <map>

namespace deltron::tools {
namespace {

// Storages that the published baseline has no counterpart of.
std::string why_ours_alone(const KeptStorage& storage) {
  static const std::map<std::string, std::string> reasons = {
      {"gdn_in_proj/rstd", "statistics of the input norm, instead of the normalised input"},
      {"gdn_qkv/rstd", "statistics of the q/k norm, instead of its input"},
  };
  const auto found = reasons.find(storage.key);
  return found == reasons.end() ? "kept by ours alone" : found->second;
}

}  // namespace

std::vector<DifferenceTerm> explain(const std::vector<PublishedTensor>& published, const std::vector<KeptStorage>& ours) {
  std::vector<bool> taken(ours.size(), false);
  std::vector<DifferenceTerm> terms;
  for (const PublishedTensor& tensor : published) {
    DifferenceTerm term;
    term.name = tensor.name;
    term.published = tensor.bytes;
    term.of_the_rule = tensor.of_the_rule;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (taken[i] || std::find(tensor.ours.begin(), tensor.ours.end(), ours[i].key) == tensor.ours.end()) continue;
      taken[i] = true;
      term.ours.push_back(ours[i]);
      term.our_bytes += ours[i].bytes;
    }
    if (term.difference() != 0 || term.ours.size() != 1) term.why = tensor.why;
    terms.push_back(std::move(term));
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (taken[i]) continue;
    DifferenceTerm term;
    term.name = ours[i].key;
    term.ours = {ours[i]};
    term.our_bytes = ours[i].bytes;
    term.why = why_ours_alone(ours[i]);
    terms.push_back(std::move(term));
  }
  return terms;
}

std::vector<DifferenceTerm> explain_freed(const std::vector<PublishedTensor>& published, const std::vector<std::string>& regions,
                                          const std::vector<KeptStorage>& freed) {
  std::vector<PublishedTensor> theirs;
  for (const PublishedTensor& tensor : published) {
    if (std::find(regions.begin(), regions.end(), tensor.freed_by) != regions.end()) theirs.push_back(tensor);
  }
  return explain(theirs, freed);
}

}  // namespace deltron::tools
