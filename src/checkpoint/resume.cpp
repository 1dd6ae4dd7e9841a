// See resume.h.
#include "src/checkpoint/resume.h"

#include "src/checkpoint/verify.h"

namespace deltron {
namespace {

std::string describe(const VerifyReport& report) {
  const VerifyFault& fault = report.faults.front();
  std::string text = fault.tensor.empty() ? fault.file + ": " + fault.what : "tensor '" + fault.tensor + "': " + fault.what;
  if (report.faults.size() > 1) text += ", and " + std::to_string(report.faults.size() - 1) + " more faults";
  return text;
}

ResumeChoice choose_newest(const std::string& run) {
  ResumeChoice choice;
  std::vector<CheckpointSummary> checkpoints = list_checkpoints(run);
  if (checkpoints.empty()) return choice;
  for (std::optional<CheckpointSummary> newest = newest_complete(checkpoints); newest.has_value();
       newest = newest_complete(checkpoints)) {
    const VerifyReport report = verify_checkpoint(newest->path, false);
    if (report.good()) {
      choice.checkpoint = newest;
      break;
    }
    mark_failed(run, newest->step, describe(report));
    for (CheckpointSummary& checkpoint : checkpoints) {
      if (checkpoint.step != newest->step) continue;
      checkpoint.failed = true;
      checkpoint.reason = describe(report);
    }
  }
  for (const CheckpointSummary& checkpoint : checkpoints) {
    if (checkpoint.usable()) continue;
    choice.notes.push_back("step " + std::to_string(checkpoint.step) +
                           " passed over: " + (checkpoint.failed ? "failed: " : "incomplete: ") + checkpoint.reason);
  }
  if (!choice.checkpoint.has_value()) {
    std::string values;
    for (const std::string& note : choice.notes) values += (values.empty() ? "" : "; ") + note;
    throw Error(ErrorCode::CheckpointIncomplete, ErrorText{"no checkpoint can be resumed from", checkpoints_folder(run), values, "",
                                                           "--resume STEP tries one of them again, --resume never starts anew"});
  }
  return choice;
}

ResumeChoice choose_step(const std::string& run, std::int64_t step) {
  std::vector<CheckpointSummary> checkpoints = list_checkpoints(run);
  CheckpointSummary* asked = nullptr;
  for (CheckpointSummary& checkpoint : checkpoints) {
    if (checkpoint.step == step) asked = &checkpoint;
  }
  const std::string name = "step " + std::to_string(step);
  if (asked == nullptr) {
    throw Error(ErrorCode::CheckpointNotFound,
                ErrorText{"no checkpoint of " + name, checkpoints_folder(run), "", "", newest_complete_text(checkpoints)});
  }
  if (!asked->complete) {
    throw Error(ErrorCode::CheckpointIncomplete,
                ErrorText{name + " is incomplete", asked->path, asked->reason, "", newest_complete_text(checkpoints)});
  }
  const VerifyReport report = verify_checkpoint(asked->path, false);
  if (!report.good()) {
    mark_failed(run, step, describe(report));
    asked->failed = true;
    throw Error(ErrorCode::CheckpointCorrupted,
                ErrorText{name + " is corrupted", asked->path, describe(report), "", newest_complete_text(checkpoints)});
  }
  ResumeChoice choice;
  if (asked->failed)
    choice.notes.push_back(name + " was marked (" + asked->reason + ") and is tried again because it was asked for");
  choice.checkpoint = *asked;
  return choice;
}

}  // namespace

ResumeChoice resolve_resume(const std::string& run, const std::string& request) {
  if (request == "never") return {};
  if (request != "auto" &&
      (request.empty() || request.size() > 18 || request.find_first_not_of("0123456789") != std::string::npos)) {
    throw Error(ErrorCode::ResumeRequestInvalid, ErrorText{"'" + request + "' is no resume request", "--resume", "",
                                                           "auto, never or a step number", "use one of these"});
  }
  const std::vector<std::string> cleaned = clean_stale(run);
  ResumeChoice choice = request == "auto" ? choose_newest(run) : choose_step(run, std::stoll(request));
  choice.notes.insert(choice.notes.begin(), cleaned.begin(), cleaned.end());
  return choice;
}

}  // namespace deltron
