// See run_loading.h.
#include "tools/run_loading.h"

#include "src/base/log.h"
#include "src/checkpoint/catalog.h"
#include "src/train/run_folder.h"
#include "src/train/state_io.h"

namespace deltron::tools {

LoadedModel load_model(const std::string& run, const std::string& step, const std::vector<std::string>& overrides) {
  RunConfig config = read_run_config(run, overrides);
  const std::vector<CheckpointSummary> checkpoints = list_checkpoints(run);
  std::string path;
  if (step.empty()) {
    const std::optional<CheckpointSummary> newest = newest_complete(checkpoints);
    if (!newest) {
      throw Error(ErrorCode::CheckpointInvalid,
                  ErrorText{"no complete checkpoint", run, "", "a model is read from a checkpoint",
                            "train with checkpoint.save set; 'deltron checkpoint list' shows what is there"});
    }
    path = newest->path;
  } else {
    for (const CheckpointSummary& checkpoint : checkpoints) {
      if (std::to_string(checkpoint.step) == step && checkpoint.complete) path = checkpoint.path;
    }
    if (path.empty()) {
      throw Error(ErrorCode::CheckpointInvalid,
                  ErrorText{"step " + step + " is missing or incomplete", run, newest_complete_text(checkpoints),
                            "--step names a complete checkpoint", "leave --step out for the newest one"});
    }
  }
  if (config.training.device == DeviceKind::Meta) {
    throw Error(ErrorCode::ConfigNotAvailable, ErrorText{"training.device: meta computes nothing", run, "", "a model is run on a device that computes",
                                                         "use training.device=cpu"});
  }
  LoadedModel loaded;
  config.parallel = {};  // however the weights were cut when they were trained: one rank reads them all
  loaded.session = make_session(config, false, config.training.device);
  const CheckpointReader reader(path);
  load_run(loaded.session, reader, true);
  loaded.step = reader.step();
  log_info("model of step " + std::to_string(loaded.step) + " of " + run);
  return loaded;
}

}  // namespace deltron::tools
