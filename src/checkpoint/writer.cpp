// See writer.h.
#include "src/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>

#include "src/base/check.h"
#include "src/base/human.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/verify.h"

namespace deltron {
namespace {

constexpr std::uint64_t kSpaceMargin = std::uint64_t{1} << 20;  // headers of small files, the manifest, the file system's own needs
constexpr std::uint64_t kHeaderBytesPerTensor = 512;

std::int64_t next_save_number(const std::vector<CheckpointSummary>& checkpoints) {
  std::int64_t last = 0;
  for (const CheckpointSummary& checkpoint : checkpoints) last = std::max(last, checkpoint.save_number);
  return last + 1;
}

}  // namespace

std::uint64_t bytes_needed(const CheckpointContent& content) {
  std::uint64_t bytes = kSpaceMargin;
  for (const TensorGroup& group : content.groups) {
    for (const TensorPiece& tensor : group.tensors) bytes += tensor.view.bytes + kHeaderBytesPerTensor;
  }
  return bytes;
}

void check_free_space(const std::string& run, std::uint64_t needed) {
  const std::string folder = checkpoints_folder(run);
  const std::uint64_t available = free_bytes(folder);
  if (available >= needed) return;
  throw Error(
      ErrorCode::CheckpointNoSpace,
      ErrorText{"not enough free space", folder, "needed " + human_bytes(needed) + ", free " + human_bytes(available),
                "the older checkpoints stay until the new one is verified", "free space there, or save to another file system"});
}

void check_free_space(const std::string& run, const CheckpointContent& content) { check_free_space(run, bytes_needed(content)); }

namespace {

class OneRank : public SaveGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> exchange(const std::string& mine) override { return {mine}; }
};

// One save on one rank. Every stage ends with an exchange, in which each rank tells what it has done or why it failed: all go on or none.
class Save {
 public:
  Save(const std::string& run, const CheckpointContent& content, const SaveOptions& options, SaveGroup& ranks)
      : run_(run), content_(content), options_(options), ranks_(ranks), disk_(options.observer), folder_(checkpoints_folder(run)),
        final_path_(checkpoint_path(run, content.step)), temporary_(join_path(folder_, kTemporaryPrefix + step_name(content.step))),
        replaced_(join_path(folder_, kReplacedPrefix + step_name(content.step))) {}

  SaveReport run() {
    const auto start = std::chrono::steady_clock::now();
    SaveReport report;
    report.path = final_path_;
    report.step = content_.step;
    try {
      const std::vector<std::string> sizes = agree([this] { return std::to_string(bytes_needed(content_)); });
      agree([&] { return on_first([&] { return begin(sizes); }); });
      const std::vector<std::string> parts = agree([this] { return write_own(); });
      const std::vector<std::string> put = agree([&] { return on_first([&] { return put_in_place(parts); }); });
      report.bytes = std::stoull(put[0]);
      report.write_seconds = seconds_since(start);
      const auto written = std::chrono::steady_clock::now();
      const std::vector<std::string> faults = agree([this] { return first_fault(); });
      report.verify_seconds = seconds_since(written);
      agree([&] { return on_first([&] { return finish(faults, report); }); });
    } catch (const Failed& failed) {
      clean_up();
      std::rethrow_exception(failed.cause);
    }
    return report;
  }

 private:
  // A stage failed and every rank knows: nobody is writing any more.
  struct Failed {
    std::exception_ptr cause;
  };

  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::string on_first(const std::function<std::string()>& work) const { return ranks_.rank() == 0 ? work() : std::string(); }

  std::vector<std::string> agree(const std::function<std::string()>& work) {
    std::string mine;
    std::exception_ptr failure;
    try {
      mine = "+" + work();
    } catch (const Error& error) {
      failure = std::current_exception();
      mine = "-" + std::to_string(static_cast<int>(error.code())) + " " + error.what();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      mine = "-" + std::to_string(static_cast<int>(ErrorCode::InternalFault)) + " " + error.what();
    }
    std::vector<std::string> all = ranks_.exchange(mine);
    if (failure) throw Failed{failure};
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].empty() || all[rank][0] != '+') throw Failed{std::make_exception_ptr(failure_of(rank, all[rank]))};
      all[rank].erase(0, 1);
    }
    return all;
  }

  static Error failure_of(std::size_t rank, const std::string& told) {
    const std::size_t space = told.find(' ');
    const int number = told.size() > 1 ? std::atoi(told.c_str() + 1) : 0;
    ErrorCode code = ErrorCode::InternalFault;
    for (const ErrorEntry& entry : error_table()) {
      if (static_cast<int>(entry.code) == number) code = entry.code;
    }
    return Error(code, ErrorText{"rank " + std::to_string(rank) + " could not save", "", space == std::string::npos ? told : told.substr(space + 1),
                                 "every rank takes part in a checkpoint, or none", "mend what that rank reports"});
  }

  std::string begin(const std::vector<std::string>& sizes) {
    disk_.make_folder(folder_);
    clean_stale(disk_, run_);
    std::uint64_t needed = 0;
    for (const std::string& size : sizes) needed += std::stoull(size);
    check_free_space(run_, needed);
    manifest_.step = content_.step;
    manifest_.save_number = next_save_number(list_checkpoints(run_));
    manifest_.created_unix =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    manifest_.state = content_.state;
    disk_.make_folder(temporary_);
    return "";
  }

  std::string write_own() {
    if (!directory_exists(temporary_)) throw not_shared("rank " + std::to_string(ranks_.rank()) + " does not see the folder that rank 0 made");
    char suffix[16] = "";
    if (ranks_.size() > 1) std::snprintf(suffix, sizeof(suffix), "-rank%05d", ranks_.rank());
    own_ = write_part(disk_, temporary_, content_.groups, suffix, options_.shard_bytes);
    if (ranks_.rank() != 0) disk_.sync_folder(temporary_);
    return part_to_text(own_);
  }

  std::string put_in_place(const std::vector<std::string>& texts) {
    std::vector<WrittenPart> parts;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      parts.push_back(rank == 0 ? own_ : part_from_text(texts[rank], "part of rank " + std::to_string(rank)));
      for (const ManifestFileEntry& file : parts.back().files) {
        const std::string path = join_path(temporary_, file.name);
        if (!file_exists(path) || file_size(path) != file.bytes) throw not_shared("rank 0 does not see " + file.name + " whole");
      }
    }
    merge_parts(parts, manifest_);
    const std::string text = compose_manifest(manifest_);
    DiskFile file(disk_, join_path(temporary_, kManifestFile));
    file.write(text.data(), text.size());
    file.finish();
    disk_.sync_folder(temporary_);
    replaces_ = directory_exists(final_path_);
    if (replaces_) disk_.rename(final_path_, replaced_);
    disk_.rename(temporary_, final_path_);
    disk_.sync_folder(folder_);
    return std::to_string(total_bytes(manifest_));
  }

  Error not_shared(const std::string& what) const {
    return Error(ErrorCode::CheckpointNotShared, ErrorText{what, temporary_, "", "checkpoint.save lies on a file system that all ranks share",
                                                           "name a folder there"});
  }

  // What reading the own files back found first: "" or FILE, tensor and fault, a line each.
  std::string first_fault() const {
    std::vector<std::string> files;
    for (const ManifestFileEntry& file : own_.files) files.push_back(file.name);
    const VerifyReport verified = verify_files(final_path_, files);
    if (verified.good()) return "";
    const VerifyFault& fault = verified.faults.front();
    return fault.tensor.empty() ? fault.file + ": " + fault.what : "tensor '" + fault.tensor + "': " + fault.what;
  }

  std::string finish(const std::vector<std::string>& faults, SaveReport& report) {
    for (const std::string& fault : faults) {
      if (fault.empty()) continue;
      if (replaces_) {
        remove_tree(final_path_);  // clean_stale then brings the replaced one back
      } else {
        mark_failed(run_, content_.step, "read back wrong after writing: " + fault);
      }
      throw Error(ErrorCode::CheckpointCorrupted, ErrorText{fault, final_path_, "found when the new checkpoint was read back", "",
                                                            "check the disk; the older checkpoints are untouched"});
    }
    if (replaces_) disk_.remove(replaced_);
    move_latest(disk_, run_, content_.step);
    report.removed = prune(disk_, run_, options_.retention);
    return "";
  }

  void clean_up() const {
    if (ranks_.rank() != 0) return;
    try {
      clean_stale(run_);
    } catch (const Error&) {
      // The first fault is the one to report; what is left is cleaned at the next start.
    }
  }

  const std::string& run_;
  const CheckpointContent& content_;
  const SaveOptions& options_;
  SaveGroup& ranks_;
  Disk disk_;
  std::string folder_, final_path_, temporary_, replaced_;
  Manifest manifest_;  // rank 0's
  WrittenPart own_;
  bool replaces_ = false;
};

}  // namespace

SaveReport save_checkpoint(const std::string& run, const CheckpointContent& content, const SaveOptions& options) {
  DELTRON_CHECK_GE(content.step, 0, "step of a checkpoint");
  OneRank alone;
  SaveGroup& ranks = options.ranks != nullptr ? *options.ranks : alone;
  return Save(run, content, options, ranks).run();
}

}  // namespace deltron
