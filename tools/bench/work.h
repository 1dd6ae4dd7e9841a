// What a kernel has to do at the least: bytes that move once, and the operations of its products. Divided by the ceilings of a machine
// this is the time that nothing can beat, and the share of a measured time. Knows sizes, no kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/dtype.h"
#include "src/config/run_config.h"

namespace deltron::tools {

// Of this process, measured (ceilings.h).
struct Ceilings {
  double copy = 0;      // bytes a second, those read and those written
  double products = 0;  // FLOP a second of large matrix products
};

struct Work {
  double bytes = 0, flops = 0;
  double seconds(const Ceilings& ceilings) const;
  bool bound_by_flops(const Ceilings& ceilings) const { return flops / ceilings.products > bytes / ceilings.copy; }
};

// Sizes of one model's kernels; heads of a kind that it does not have are 0.
struct KernelSizes {
  std::int64_t tokens = 0, documents = 0;
  std::int64_t hidden = 0, ffn = 0, vocab = 0;
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_kernel = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  bool output_gate = false, second_rule = false, pre_rule_fusion = false, output_norm_fusion = false;

  bool linear() const { return key_heads > 0; }
  bool softmax() const { return query_heads > 0; }
  std::int64_t dq() const { return key_heads * key_dim; }
  std::int64_t dv() const { return value_heads * value_dim; }
  std::int64_t conv_channels() const { return 2 * dq() + dv(); }
  std::int64_t gate_channels(bool second) const { return second ? 2 * dq() + 2 * dv() : dv() + 2 * value_heads; }  // z and the gates
};
// One micro-batch.
KernelSizes kernel_sizes(const RunConfig& config);
std::string problem_of(const KernelSizes& sizes);  // why no kernel runs with these; "" if they can be run

Work matmul_work(double m, double n, double k, double item, double item_out);
// Elements read and written, of `item` bytes.
Work stream_work(double elements, double item);
// Chunks of 64: the products that the algorithm needs, triangular ones counted half; inputs and outputs once.
Work rule_forward_work(const KernelSizes& sizes, bool second, double item);
Work rule_backward_work(const KernelSizes& sizes, bool second, double item);
// Causal, over documents of equal length: two products forward, five backward.
Work attention_forward_work(const KernelSizes& sizes, double item);
Work attention_backward_work(const KernelSizes& sizes, double item);

// Kernels that run again when a recompute module is replayed in one layer.
std::vector<Work> replay_work(const KernelSizes& sizes, const std::string& module, double item);
double seconds(const std::vector<Work>& works, const Ceilings& ceilings);

}  // namespace deltron::tools
