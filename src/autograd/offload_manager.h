// The pipeline offload manager of one rank, a slot of the context. It moves the storages that layers name from device to host memory
// in forward and back in backward; layers speak to it through offload.h, the training loop through configure(), begin_micro_batch(),
// end_forward() and reset(). The protocol and its hazards: docs/recompute_and_offload.md. Knows no layers.
// Every allocation and release happens on the calling thread at a fixed point of the program, so that peaks repeat exactly.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/autograd/offload_group.h"
#include "src/autograd/offload_policy.h"
#include "src/autograd/offload_transfer.h"
#include "src/tensor/tensor.h"

namespace deltron {

struct OffloadOptions {
  std::vector<std::string> modules;
  std::int64_t min_offloaded_tensor_size = 1048576;  // elements of the storage
  double activation_offload_fraction = 1.0;
  // Copies out of one module that may be under way before compute waits for the oldest and frees it. -1: no cap is set, which means
  // the usual release point, the module's next commit (one copy under way); 0: compute waits in every commit.
  int max_inflight_offloads = -1;
  int rank = 0;  // for the table
  OffloadFaults faults;
};

struct OffloadStats {
  std::int64_t bytes_out = 0;      // copied to the host
  std::int64_t bytes_in = 0;       // copied back
  std::int64_t groups_moved = 0;   // that sent bytes out
  std::int64_t reloads_at_once = 0;       // storages asked for before their prefetch had begun
  std::int64_t read_before_wait = 0;      // storages that a saved tensor was read from before their group's wait
  std::int64_t kept_while_draining = 0;   // storages needed again before they were freed: nothing to reload
  std::int64_t duplicates = 0;     // storages captured again within a group
};

class OffloadManager {
 public:
  OffloadManager() = default;
  ~OffloadManager();
  OffloadManager(const OffloadManager&) = delete;
  OffloadManager& operator=(const OffloadManager&) = delete;

  // Starts a warm-up. Legal between iterations.
  void configure(Context& ctx, const OffloadOptions& options);
  bool handles(const std::string& module) const;

  // The training loop. Without grad mode begin_micro_batch() does nothing, as every call of a layer without it.
  void begin_micro_batch(Context& ctx);
  // Frees what is still draining. Call it where the forward pass has its peak behind the last layer, e.g. before the logits.
  void end_forward(Context& ctx);
  // Once an iteration, after the last backward. The first time (with a backward behind it) it ends the warm-up and decides.
  // Throws ConfigModuleNeverRan if a module met no layer.
  void reset(Context& ctx);

  bool warming_up() const { return warming_up_; }
  const std::vector<OffloadRow>& table() const { return rows_; }  // of the warm-up, with its decisions; empty before
  std::string table_text() const { return offload_table_text(rows_, options_.rank); }
  std::string summary_text() const { return offload_summary_text(rows_, options_.rank); }
  // Elements of the largest storage that a layer named for this module in the warm-up, large enough to move or not; 0: none.
  std::int64_t largest_storage(const std::string& module) const;
  const OffloadStats& stats() const { return stats_; }                          // of this iteration
  const OffloadStats& last_iteration() const { return last_iteration_; }
  OffloadPool::Stats pool() const { return pool_ ? pool_->stats() : OffloadPool::Stats{}; }

  // For offload.h alone.
  std::shared_ptr<OffloadGroup> start_group(Context& ctx, const std::string& name);
  std::shared_ptr<OffloadGroup> open_group(const std::string& name) const;  // null: none
  void capture(OffloadGroup& group, const Tensor& tensor);
  void commit(Context& ctx, const std::shared_ptr<OffloadGroup>& group, const std::vector<Tensor>& releases);
  void begin_group_backward(Context& ctx, OffloadGroup& group);  // waits for the group's reload
  void end_group_backward(Context& ctx, const OffloadGroup& group);  // starts the next prefetch
  void restore(Context& ctx, const Storage* storage);  // on the spot, if it is away

 private:
  bool eligible(const Storage& storage, DType dtype) const;
  std::vector<CapturedStorage> releasable(const OffloadGroup& group, const std::vector<Tensor>& releases) const;
  bool policy_moves(const OffloadGroup& group) const;
  void release_down_to(Context& ctx, const std::string& name, std::size_t in_flight);
  void free_source(Context& ctx, MovedStorage& moved);
  void start_reload(Context& ctx, MovedStorage& moved);
  void restore(Context& ctx, MovedStorage& moved);
  void forget(MovedStorage& moved);
  void prefetch(Context& ctx, int chunk);
  void end_warm_up(const std::vector<OffloadChunkInfo>& infos);
  void wait_for_copies();

  OffloadOptions options_;
  std::shared_ptr<Allocator> device_memory_;
  std::unique_ptr<OffloadPool> pool_;
  OffloadStats stats_, last_iteration_;

  // This iteration.
  std::uint64_t iteration_ = 0;
  bool forward_open_ = false;
  int backwards_begun_ = 0;
  std::vector<OffloadChunk> chunks_;
  std::vector<OffloadChunkInfo> infos_;
  std::vector<std::shared_ptr<OffloadGroup>> open_;
  std::map<std::string, std::deque<std::shared_ptr<OffloadGroup>>> in_flight_;  // by module: copies out that have not been freed
  std::unordered_map<const Storage*, std::shared_ptr<MovedStorage>> away_;      // looked up, never walked in an order that matters

  // Learned in the warm-up.
  bool warming_up_ = true;
  std::vector<OffloadRow> rows_;           // grows in the warm-up
  std::vector<OffloadChunkInfo> learned_;
  std::map<std::string, std::int64_t> largest_;  // elements, by module
};

}  // namespace deltron
