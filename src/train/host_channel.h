// Short messages between the hosts of all ranks, beside the collectives of their devices: texts of a save, decisions of rank 0, what the
// ranks know of the next step. Every rank makes the same calls in the same order. Must not know what the messages mean.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "src/checkpoint/save_group.h"

namespace deltron {

class HostChannel : public SaveGroup {
 public:
  // `control`: a group over host memory; null: one rank, to which every call gives its own message back.
  explicit HostChannel(std::shared_ptr<Communicator> control = nullptr);
  ~HostChannel() override;
  int rank() const override { return control_ ? control_->rank() : 0; }
  int size() const override { return control_ ? control_->size() : 1; }

  std::vector<std::string> exchange(const std::string& mine) override;
  std::string from_first(const std::string& mine);  // rank 0's, on every rank

  // Equally many numbers of every rank, [size][count]: begun here, waited for by finish_numbers(). One exchange at a time.
  void begin_numbers(const std::vector<double>& mine);
  std::vector<std::vector<double>> finish_numbers();

 private:
  std::shared_ptr<Communicator> control_;
  std::unique_ptr<Context> ctx_;  // host memory, one thread; null for one rank
  std::vector<double> own_;       // numbers of the exchange that was begun
  Tensor mine_, all_;             // F64, of the exchange that was begun
  Event arrived_;
};

}  // namespace deltron
