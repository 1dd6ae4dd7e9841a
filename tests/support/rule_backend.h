// Where the runners of the delta rules execute: the CPU kernels, or another back end that first moves the runner's host buffers to
// its device and afterwards brings them back.
#pragma once

#include <utility>
#include <vector>

#include "src/base/stream.h"

namespace deltron::test {

using HostRanges = std::vector<std::pair<void*, std::size_t>>;  // every buffer that arguments may point into

template <class ForwardArgs, class BackwardArgs>
struct RuleBackend {
  std::int64_t (*forward_bytes)(const ForwardArgs&, const StreamHandle&);
  std::int64_t (*backward_bytes)(const BackwardArgs&, const StreamHandle&);
  void (*forward)(const ForwardArgs&, const StreamHandle&, const HostRanges&);
  void (*backward)(const BackwardArgs&, const StreamHandle&, const HostRanges&);
  const char* (*forward_kernel)(const ForwardArgs&);
  const char* (*backward_kernel)(const BackwardArgs&);
};

}  // namespace deltron::test
