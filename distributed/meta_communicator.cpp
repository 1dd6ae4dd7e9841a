// See meta_communicator.h.
#include "distributed/meta_communicator.h"

#include "src/base/check.h"

namespace deltron {
namespace {

class MetaCommunicator : public Communicator {
 public:
  MetaCommunicator(int rank, int size, std::string label) : Communicator(rank, size, std::move(label)) {}
  const char* backend() const override { return "meta"; }
  void abort(const std::string&) override {}  // nobody waits

  std::shared_ptr<Communicator> split_group(Context&, int, const std::string& label) override {
    DELTRON_CHECK(false, "group ", this->label(), ": one rank on meta does not know who shares its colour in '", label, "'");
    return nullptr;
  }

 protected:
  Event start(Context& ctx, const Collective& call, bool) override {
    DELTRON_CHECK(ctx.is_meta(), "'", call.what, "': group ", label(), " moves no data, so it serves contexts on meta");
    return ctx.compute_point();
  }
};

}  // namespace

std::shared_ptr<Communicator> make_meta_group(int rank, int size, const std::string& label) {
  DELTRON_CHECK(size > 0 && rank >= 0 && rank < size, "rank ", rank, " of ", size);
  return std::make_shared<MetaCommunicator>(rank, size, label);
}

}  // namespace deltron
