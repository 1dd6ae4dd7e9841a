// A process that ends at any single step of a save, power that fails there, a disk that is full from there on: resume always finds
// a complete checkpoint, and nothing that was complete is lost.
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <set>

#include <sys/wait.h>
#include <unistd.h>

#include "src/checkpoint/reader.h"
#include "src/checkpoint/resume.h"
#include "src/checkpoint/verify.h"
#include "src/checkpoint/writer.h"
#include "tests/checkpoint/temp_folder.h"

namespace deltron {
namespace {

constexpr int kKilled = 42;

// What the test makes of the point: the process ends there; or power fails, so that what was not synced is lost too.
enum class Loss { ProcessEnds, UnsyncedDataLost, UnsyncedRenamesLost };

// Ends the process at point `at`. To model a power failure it follows what is on the device: content since the last fsync of a
// file, and names since the last fsync of their folder, may be lost.
class Killer : public WriteObserver {
 public:
  Killer(int at, Loss loss) : at_(at), loss_(loss) {}
  void before(const WritePoint& point) override {
    if (seen_++ == at_) end();
    switch (point.kind) {
      case WriteKind::Open:
        new_names_.insert(point.path);
        unsynced_.insert(point.path);
        break;
      case WriteKind::Write:
        unsynced_.insert(point.path);
        break;
      case WriteKind::SyncFile:
        unsynced_.erase(point.path);
        break;
      case WriteKind::SyncFolder:
        sync_names(point.path);
        break;
      case WriteKind::Rename:
        rename(point.path, point.target);
        break;
      case WriteKind::Remove:
        unsynced_.erase(point.path);
        new_names_.erase(point.path);
        break;
      case WriteKind::MakeFolder:
        break;
    }
  }

 private:
  [[noreturn]] void end() {
    if (loss_ != Loss::ProcessEnds) {
      for (const std::string& path : unsynced_) {
        if (truncate(path.c_str(), static_cast<off_t>(file_size(path) / 2)) != 0) _exit(1);
      }
      for (const std::string& path : new_names_) unlink(path.c_str());
    }
    if (loss_ == Loss::UnsyncedRenamesLost) {
      for (auto pair = renames_.rbegin(); pair != renames_.rend(); ++pair) std::rename(pair->second.c_str(), pair->first.c_str());
    }
    _exit(kKilled);
  }
  void sync_names(const std::string& folder) {
    for (auto name = new_names_.begin(); name != new_names_.end();)
      name = parent_folder(*name) == folder ? new_names_.erase(name) : std::next(name);
    while (!renames_.empty() && parent_folder(renames_.front().second) == folder) renames_.erase(renames_.begin());
  }
  static void move_below(std::set<std::string>& names, const std::string& from, const std::string& to) {
    std::set<std::string> moved;
    for (const std::string& name : names)
      moved.insert(name.compare(0, from.size() + 1, from + "/") == 0 ? to + name.substr(from.size()) : name);
    names = moved;
  }
  void rename(const std::string& from, const std::string& to) {
    move_below(unsynced_, from, to);
    move_below(new_names_, from, to);
    new_names_.erase(from);
    unsynced_.erase(from);
    if (directory_exists(from)) renames_.emplace_back(from, to);  // of a file, the replaced content would be needed to undo it
  }

  int at_;
  Loss loss_;
  int seen_ = 0;
  std::set<std::string> unsynced_;   // files with content not yet on the device
  std::set<std::string> new_names_;  // files whose name is not yet on the device
  std::vector<std::pair<std::string, std::string>> renames_;
};

class FullDisk : public WriteObserver {
 public:
  explicit FullDisk(int from) : from_(from) {}
  void before(const WritePoint& point) override {
    const bool grows = point.kind != WriteKind::Remove && point.kind != WriteKind::Rename;
    if (seen_++ >= from_ && (grows || seen_ == from_ + 1)) {
      failed_ = true;
      throw Error(ErrorCode::ResourceUnavailable, ErrorText{"writing failed", point.path, "No space left on device"});
    }
  }
  bool failed() const { return failed_; }

 private:
  int from_;
  int seen_ = 0;
  bool failed_ = false;
};

HostArray weight_of(double value) { return from_doubles("w", DType::F32, {4}, {value, value + 1, value + 2, value + 3}); }
HostArray moment_of(double value) { return from_doubles("exp_avg.w", DType::F32, {4}, {-value, 0, 1, 2}); }

void save(const std::string& run, std::int64_t step, double value, WriteObserver* observer = nullptr,
          RetentionPolicy policy = {2, 0}) {
  const HostArray weight = weight_of(value);
  const HostArray moment = moment_of(value);
  CheckpointContent content;
  content.step = step;
  content.groups = {{"model", {weight.view()}}, {"optimizer", {moment.view()}}};
  content.state = {{"value", value}};
  SaveOptions options;
  options.observer = observer;
  options.retention = policy;
  save_checkpoint(run, content, options);
}

// Value that the whole checkpoint holds; fails where its parts disagree or do not verify.
double value_of(const std::string& path) {
  EXPECT_TRUE(verify_checkpoint(path, false).good()) << path;
  const CheckpointReader reader(path);
  const double value = reader.state()["value"];
  EXPECT_EQ(reader.read("w").bytes, weight_of(value).bytes) << path;
  EXPECT_EQ(reader.read("exp_avg.w").bytes, moment_of(value).bytes) << path;
  return value;
}

struct Scenario {
  const char* name;
  std::vector<std::pair<std::int64_t, double>> before;  // step, value
  std::int64_t step;
  double value;
  std::set<std::int64_t> may_go;  // steps that the save itself prunes once it is complete
};

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> list = {
      {"first save of a run", {}, 10, 10, {}},
      {"a further save that prunes the oldest", {{10, 10}, {20, 20}}, 30, 30, {10}},
      {"a save that replaces its own step", {{10, 10}, {20, 20}}, 20, 21, {}},
      {"a save that replaces an older step and prunes", {{10, 10}, {20, 20}, {30, 30}}, 20, 21, {10}},
  };
  return list;
}

void prepare(const Scenario& scenario, const std::string& run) {
  for (const auto& [step, value] : scenario.before) save(run, step, value, nullptr, {0, 0});
}

// What must hold whatever happened at the point.
void check_state(const Scenario& scenario, const std::string& run) {
  const ResumeChoice choice = resolve_resume(run, "auto");
  bool arrived = false;
  if (choice.checkpoint.has_value()) {
    const double value = value_of(choice.checkpoint->path);
    arrived = choice.checkpoint->step == scenario.step && value == scenario.value;
    if (!arrived) {
      ASSERT_FALSE(scenario.before.empty());
      EXPECT_EQ(choice.checkpoint->step, scenario.before.back().first);  // else the newest of before
      EXPECT_EQ(value, scenario.before.back().second);
    }
  } else {
    EXPECT_TRUE(scenario.before.empty());
  }
  for (const auto& [step, value] : scenario.before) {
    const bool there = directory_exists(checkpoint_path(run, step));
    if (!there) {
      EXPECT_TRUE(arrived && scenario.may_go.count(step) == 1) << "step " << step << " was lost";
      continue;
    }
    const double found = value_of(checkpoint_path(run, step));
    if (step == scenario.step && arrived) continue;
    EXPECT_EQ(found, value) << "step " << step;
  }
  for (const CheckpointSummary& checkpoint : list_checkpoints(run)) EXPECT_TRUE(checkpoint.usable()) << checkpoint.reason;
  const std::optional<std::int64_t> latest = latest_step(run);
  EXPECT_TRUE(latest.has_value() || scenario.before.empty());  // never half written
  if (latest.has_value()) {
    EXPECT_TRUE(directory_exists(checkpoint_path(run, *latest)));
  }
  // The next save works and leaves no trace of the accident.
  save(run, scenario.step, scenario.value);
  EXPECT_EQ(resolve_resume(run, "auto").checkpoint->step, scenario.step);
  EXPECT_EQ(latest_step(run), scenario.step);
  for (const std::string& name : list_directory(checkpoints_folder(run))) EXPECT_NE(name.front(), '.') << name;
}

// Runs `work` in a process of its own and returns its exit status.
int in_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      work();
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class CrashAtEveryPoint : public ::testing::TestWithParam<Loss> {};

TEST_P(CrashAtEveryPoint, resume_finds_a_complete_checkpoint_and_none_is_lost) {
  int total = 0;
  for (const Scenario& scenario : scenarios()) {
    int point = 0;
    for (int status = kKilled; status == kKilled; ++point) {
      SCOPED_TRACE(std::string(scenario.name) + ", point " + std::to_string(point));
      const TempFolder run;
      prepare(scenario, run.path());
      status = in_child([&] {
        Killer killer(point, GetParam());
        save(run.path(), scenario.step, scenario.value, &killer);
      });
      ASSERT_TRUE(status == kKilled || status == 0) << status;
      check_state(scenario, run.path());
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(point, 20) << scenario.name;
    total += point - 1;
  }
  std::cout << total << " points tried\n";
}

INSTANTIATE_TEST_SUITE_P(Crash, CrashAtEveryPoint,
                         ::testing::Values(Loss::ProcessEnds, Loss::UnsyncedDataLost, Loss::UnsyncedRenamesLost));

TEST(FullDiskAtEveryPoint, the_save_fails_with_an_error_and_none_is_lost) {
  int total = 0;
  for (const Scenario& scenario : scenarios()) {
    int point = 0;
    for (bool failed = true; failed; ++point) {
      SCOPED_TRACE(std::string(scenario.name) + ", point " + std::to_string(point));
      const TempFolder run;
      prepare(scenario, run.path());
      FullDisk full(point);
      failed = false;
      try {
        save(run.path(), scenario.step, scenario.value, &full);
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.code(), ErrorCode::ResourceUnavailable);
      }
      EXPECT_EQ(failed, full.failed());
      for (const std::string& name : list_directory(run.path())) EXPECT_EQ(name, "checkpoints");
      check_state(scenario, run.path());
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(point, 20) << scenario.name;
    total += point - 1;
  }
  std::cout << total << " points tried\n";
}

// A second crash while the first one is cleaned up must not lose anything either.
TEST(CrashWhileCleaning, nothing_is_lost) {
  const Scenario& scenario = scenarios()[2];
  int total = 0;
  for (int first = 0;; ++first) {
    int status = kKilled;
    for (int second = 0; status == kKilled; ++second) {
      const TempFolder run;
      prepare(scenario, run.path());
      const int saved = in_child([&] {
        Killer killer(first, Loss::ProcessEnds);
        save(run.path(), scenario.step, scenario.value, &killer);
      });
      if (saved == 0) {
        std::cout << total << " pairs of points tried\n";
        EXPECT_GT(total, 20);
        return;
      }
      status = in_child([&] {
        Killer killer(second, Loss::ProcessEnds);
        Disk disk(&killer);
        clean_stale(disk, run.path());
      });
      ASSERT_TRUE(status == kKilled || status == 0) << status;
      SCOPED_TRACE("points " + std::to_string(first) + " and " + std::to_string(second));
      check_state(scenario, run.path());
      if (HasFatalFailure()) return;
      total += status == kKilled ? 1 : 0;
    }
  }
}

}  // namespace
}  // namespace deltron
