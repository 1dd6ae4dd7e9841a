// See activation_offload.h.
#include "src/train/activation_offload.h"

#include "src/autograd/offload_manager.h"

namespace deltron {

void configure_offload(Session& session) {
  const OffloadConfig& config = session.config.offload;
  if (!config.fine_grained_activation_offloading) return;
  OffloadOptions options;
  options.modules = config.offload_modules;
  options.min_offloaded_tensor_size = config.min_offloaded_tensor_size;
  options.activation_offload_fraction = config.activation_offload_fraction;
  options.max_inflight_offloads = static_cast<int>(config.fine_grained_offloading_max_inflight_offloads);
  session.ctx->slot<OffloadManager>().configure(*session.ctx, options);
}

void require_offload_effect(Session& session) {
  const OffloadManager& manager = session.ctx->slot<OffloadManager>();
  for (const OffloadModuleTotals& module : offload_by_module(manager.table())) {
    if (module.bytes > 0) continue;
    const std::string largest = std::to_string(manager.largest_storage(module.name));
    throw Error(ErrorCode::ConfigNoEffect,
                ErrorText{"'" + module.name + "' offloads nothing", "offload.offload_modules",
                          "its largest storage has " + largest + " elements, offload.min_offloaded_tensor_size is " +
                              std::to_string(session.config.offload.min_offloaded_tensor_size),
                          "smaller storages stay on the device",
                          "set offload.min_offloaded_tensor_size: " + largest + " or less, or remove " + module.name});
  }
}

std::string offload_report(Session& session) {
  if (!session.config.offload.fine_grained_activation_offloading) return "";
  return session.ctx->slot<OffloadManager>().summary_text();
}

}  // namespace deltron
