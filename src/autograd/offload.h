// Activation offload as layers use it: a group is one occurrence of a module; it starts on the module's input, captures what nodes save
// inside a scope, and commits on a tensor downstream of everything that the freed storages are needed for in forward.
//   Tensor x = offload_group_start(ctx, qkv, "gdn_qkv");
//   { OffloadCapture capture(ctx, "gdn_qkv");  prepared = gdn_qkv_prep(ctx, x, ...); }
//   Tensor core = rule(prepared ...);                       // a recompute hook on `core` is registered here
//   core = offload_group_commit(ctx, core, "gdn_qkv", {qkv});  // qkv leaves the device
// Without the module in the manager's options, without grad mode, or without a graph behind x these calls do nothing at all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/autograd/node.h"
#include "src/autograd/offload_manager.h"

namespace deltron {

// x itself, through an identity node whose backward starts the next prefetch.
Tensor offload_group_start(Context& ctx, const Tensor& x, const char* module);

// While it lives, everything that nodes save is captured by the open group of this module: activations of eligible size may then be
// released by its commit; parameters, small tensors and those of other memory are saved as usual.
class OffloadCapture {
 public:
  OffloadCapture(Context& ctx, const char* module);

 private:
  std::optional<SavedTensorHooksGuard> guard_;
};

// `out` itself, through an identity node whose backward waits for the group's reload. In forward the storages of `releases` (captured,
// and large enough), and those that nothing but captured saves holds, are copied out and freed at the next release point: nobody may
// read them in forward any more, nor write them. They are back before the backward of whatever made `out`. Hooks that need them are
// registered on `out` before this call; later operations use the result.
Tensor offload_group_commit(Context& ctx, const Tensor& out, const char* module, const std::vector<Tensor>& releases);

}  // namespace deltron
