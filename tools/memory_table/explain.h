// Sets what the graph of our layer keeps beside what the published baseline kept, tensor by tensor, so that every difference between
// two rows is a sum of named terms. The terms of a row add up to the difference exactly: a test holds that.
#pragma once

#include <string>
#include <vector>

#include "tools/memory_table/measure.h"
#include "tools/memory_table/published.h"

namespace deltron::tools {

struct DifferenceTerm {
  std::string name;               // of the published tensor, or of our storage where the published baseline had none
  std::int64_t published = 0;     // bytes
  std::vector<KeptStorage> ours;  // in its place
  std::int64_t our_bytes = 0;
  std::string why;                // empty where both are equal
  bool of_the_rule = false;
  std::int64_t difference() const { return our_bytes - published; }
};

// All of the published tensors against all of our storages.
std::vector<DifferenceTerm> explain(const std::vector<PublishedTensor>& published, const std::vector<KeptStorage>& ours);
// The same for what a set of regions frees.
std::vector<DifferenceTerm> explain_freed(const std::vector<PublishedTensor>& published, const std::vector<std::string>& regions,
                                          const std::vector<KeptStorage>& freed);

}  // namespace deltron::tools
