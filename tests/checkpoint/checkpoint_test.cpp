// Checkpoints: what is written comes back, any flipped bit is found, the right one is resumed from, the right ones are kept.
#include <gtest/gtest.h>

#include <limits>

#include <unistd.h>

#include "src/base/hash.h"

#include "src/checkpoint/reader.h"
#include "src/checkpoint/report.h"
#include "src/checkpoint/resume.h"
#include "src/checkpoint/writer.h"
#include "tests/checkpoint/temp_folder.h"

namespace deltron {
namespace {

// Two weights and their moments; values depend on `value`.
struct SmallState {
  explicit SmallState(double value)
      : weight(from_doubles("decoder.final_layernorm.weight", DType::BF16, {3}, {value, 1, 2})),
        embedding(from_doubles("embedding.word_embeddings.weight", DType::F32, {2, 2}, {value, 3, 4, 5})),
        moment(from_doubles("exp_avg.embedding.word_embeddings.weight", DType::F32, {2, 2}, {value, 6, 7, 8})) {}
  CheckpointContent content(std::int64_t step) const {
    CheckpointContent content;
    content.step = step;
    content.groups = {{"model", {weight.view(), embedding.view()}}, {"optimizer", {moment.view()}}};
    content.state = {{"consumed_samples", step * 8}, {"lr", 0.1}, {"rng", {1, 18446744073709551615u}}};
    return content;
  }
  HostArray weight, embedding, moment;
};

SaveReport save(const std::string& run, std::int64_t step, const RetentionPolicy& policy = {},
                std::uint64_t shard_bytes = 1 << 20) {
  SaveOptions options;
  options.retention = policy;
  options.shard_bytes = shard_bytes;
  return save_checkpoint(run, SmallState(static_cast<double>(step)).content(step), options);
}

std::vector<std::int64_t> steps_of(const std::string& run) {
  std::vector<std::int64_t> steps;
  for (const CheckpointSummary& checkpoint : list_checkpoints(run)) steps.push_back(checkpoint.step);
  return steps;
}

void flip_bit(const std::string& path, std::size_t byte, int bit) {
  std::string content = read_file(path);
  content[byte] = static_cast<char>(content[byte] ^ (1 << bit));
  FileWriter writer(path);
  writer.write(content);
  writer.close(false);
}

TEST(Checkpoint, tensors_and_state_come_back_to_the_bit) {
  const TempFolder run;
  const SaveReport report = save(run.path(), 100);
  EXPECT_EQ(base_name(report.path), "step_00000100");
  const CheckpointReader reader(report.path);
  EXPECT_EQ(reader.step(), 100);
  EXPECT_EQ(reader.state(), SmallState(100).content(100).state);
  EXPECT_EQ(reader.state()["rng"][1].get<std::uint64_t>(), 18446744073709551615u);
  const SmallState state(100);
  for (const HostArray* array : {&state.weight, &state.embedding, &state.moment}) {
    const HostArray read = reader.read(array->name);
    EXPECT_EQ(read.bytes, array->bytes);
    EXPECT_EQ(read.shape, array->shape);
    EXPECT_EQ(read.dtype, array->dtype);
  }
  EXPECT_EQ(reader.names().size(), 3u);
  EXPECT_EQ(read_file(run / "checkpoints/latest"), "step_00000100\n");
  EXPECT_EQ(report.bytes, total_bytes(reader.manifest()));
}

TEST(Checkpoint, groups_larger_than_a_shard_are_cut_and_come_back) {
  const TempFolder run;
  const SaveReport report = save(run.path(), 1, {}, 8);
  const std::vector<std::string> names = list_directory(report.path);
  EXPECT_EQ(names, (std::vector<std::string>{"manifest.json", "model-00001-of-00002.safetensors",
                                             "model-00002-of-00002.safetensors", "optimizer.safetensors"}));
  EXPECT_TRUE(verify_checkpoint(report.path).good());
  EXPECT_EQ(CheckpointReader(report.path).read("embedding.word_embeddings.weight").bytes, SmallState(1).embedding.bytes);
}

TEST(Checkpoint, names_that_the_model_has_not_or_the_checkpoint_lacks_are_errors_with_the_nearest) {
  const TempFolder run;
  const CheckpointReader reader(save(run.path(), 1).path);
  std::vector<std::string> names = reader.names();
  EXPECT_NO_THROW(reader.require_names(names));
  names[0] = "decoder.final_layernrom.weight";
  EXPECT_ERROR(reader.require_names(names), ErrorCode::CheckpointTensorNames,
               "missing 'decoder.final_layernrom.weight' (nearest: decoder.final_layernorm.weight)",
               "unknown 'decoder.final_layernorm.weight' (nearest: decoder.final_layernrom.weight)");
  EXPECT_NO_THROW(reader.require_names({"embedding.word_embeddings.weight"}, true));
  EXPECT_ERROR(reader.require_names({"embedding.word_embeddings.weight"}), ErrorCode::CheckpointTensorNames, "unknown");
  EXPECT_ERROR(reader.view("embedding.word_embedings.weight"), ErrorCode::TensorNotFound, "embedding.word_embeddings.weight");
  EXPECT_ERROR(reader.view("embedding.word_embeddings.weight", {2, 3}), ErrorCode::TensorShapeMismatch,
               "found [2,2], expected [2,3]");
}

TEST(Checkpoint, verify_finds_every_single_flipped_bit_and_names_the_tensor) {
  const TempFolder run;
  const std::string path = save(run.path(), 5).path;
  ASSERT_TRUE(verify_checkpoint(path).good());
  std::size_t flips = 0;
  for (const std::string& name : list_directory(path)) {
    const std::string file = join_path(path, name);
    const std::string good = read_file(file);
    const std::size_t data =
        name == "manifest.json" ? good.size() : 8 + static_cast<std::uint8_t>(good[0]) + 256u * static_cast<std::uint8_t>(good[1]);
    for (std::size_t byte = 0; byte < good.size(); ++byte) {
      const int bit = static_cast<int>(byte % 8);
      flip_bit(file, byte, bit);
      const VerifyReport report = verify_checkpoint(path, false);
      EXPECT_FALSE(report.good()) << name << " byte " << byte;
      if (!report.good() && byte >= data) {
        EXPECT_NE(report.faults[0].tensor, "") << name << " byte " << byte;
        EXPECT_ERROR(CheckpointReader(path).view(report.faults[0].tensor), ErrorCode::CheckpointCorrupted, report.faults[0].tensor);
      }
      flip_bit(file, byte, bit);
      ++flips;
    }
  }
  EXPECT_GT(flips, 1000u);
  EXPECT_TRUE(verify_checkpoint(path).good());
}

TEST(Checkpoint, verify_reports_missing_and_truncated_files) {
  const TempFolder run;
  const std::string path = save(run.path(), 5).path;
  remove_tree(path + "/optimizer.safetensors");
  ASSERT_EQ(truncate((path + "/model.safetensors").c_str(), 20), 0);
  const VerifyReport report = verify_checkpoint(path);
  ASSERT_EQ(report.faults.size(), 2u);
  EXPECT_NE(report.faults[0].what.find("20 bytes instead of"), std::string::npos);
  EXPECT_EQ(report.faults[1].what, "file is missing");
  EXPECT_NE(to_text(report).find("FAULT model.safetensors"), std::string::npos);
  EXPECT_FALSE(verify_checkpoint(run / "none").good());
}

TEST(Manifest, every_missing_or_wrong_field_is_refused_even_with_a_right_hash) {
  Manifest manifest;
  manifest.step = 3;
  manifest.files = {{"model.safetensors", 10, "0123456789abcdef"}};
  manifest.tensors = {{"a", DType::F32, {1}, "model.safetensors", "0123456789abcdef"}};
  const std::string good = compose_manifest(manifest);
  EXPECT_EQ(parse_manifest(good, "m").tensors.at(0).name, "a");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    text.replace(place, from.size(), to);
    const std::size_t body = text.find('\n') + 1;
    const std::string hash = hash_text(hash64(text.data() + body, text.size() - body));
    return text.replace(19, 16, hash);
  };
  const std::vector<std::vector<std::string>> rows = {
      {"\"deltron-checkpoint\"", "\"other\"", "is not a checkpoint manifest"},
      {"\"version\": 1", "\"version\": 3", "format version is not supported (version 3)"},
      {"\"step\": 3", "\"step\": -3", "'step' is not a whole number"},
      {"\"step\": 3", "\"stap\": 3", "'step' is missing"},
      {"\"bytes\": 10", "\"bytes\": 1e999", "number overflow"},
      {"\"bytes\": 10", "\"bytes\": 10, \"bytes\": 10", "'bytes' appears twice"},
      {"\"model.safetensors\", \"bytes\"", "\"../model.safetensors\", \"bytes\"", "not a plain name"},
      {"\"hash\": \"0123456789abcdef\"}]", "\"hash\": \"0123456789abcdeX\"}]", "16 hex digits"},
      {"\"dtype\": \"fp32\"", "\"dtype\": \"fp33\"", "unknown dtype (fp33)"},
      {"\"shape\": [1]", "\"shape\": [-1]", "'shape' is not a whole number"},
      {"\"file\": \"model.safetensors\"", "\"file\": \"optimizer.safetensors\"", "not listed"},
      {"\"state\": {}", "\"state\": []", "'state' is not an object"},
      {"\"tensors\": [", "\"tensors\": [7,", "an object was expected"},
  };
  for (const std::vector<std::string>& row : rows)
    EXPECT_ERROR(parse_manifest(changed(row[0], row[1]), "m"), ErrorCode::ManifestInvalid, row[2]);
  EXPECT_ERROR(parse_manifest("{}", "m"), ErrorCode::ManifestInvalid, "does not begin with its own hash");
  EXPECT_ERROR(parse_manifest(good + " ", "m"), ErrorCode::ManifestInvalid, "does not match its own hash");
}

TEST(Manifest, a_state_that_json_cannot_hold_is_an_internal_fault) {
  Manifest manifest;
  manifest.state = {{"loss", {1.0, std::numeric_limits<double>::quiet_NaN()}}};
  EXPECT_ERROR(compose_manifest(manifest), ErrorCode::InternalFault, "not finite");
}

TEST(Space, too_little_of_it_is_an_error_before_anything_is_written) {
  const TempFolder run;
  save(run.path(), 1);
  CheckpointContent content;
  content.step = 2;
  HostView huge;
  huge.name = "huge";
  huge.bytes = std::size_t{1} << 50;
  huge.shape = {std::int64_t{1} << 48};
  content.groups = {{"model", {huge}}};
  EXPECT_ERROR(save_checkpoint(run.path(), content), ErrorCode::CheckpointNoSpace, "needed 1.00 PiB");
  EXPECT_EQ(list_directory(run / "checkpoints"), (std::vector<std::string>{"latest", "step_00000001"}));
}

TEST(Retention, keeps_the_last_n_and_every_mth) {
  const TempFolder run;
  for (std::int64_t step = 10; step <= 80; step += 10) save(run.path(), step, {2, 30});
  EXPECT_EQ(steps_of(run.path()), (std::vector<std::int64_t>{30, 60, 70, 80}));
  const TempFolder all;
  for (std::int64_t step = 1; step <= 4; ++step) save(all.path(), step, {0, 0});
  EXPECT_EQ(steps_of(all.path()).size(), 4u);
}

TEST(Retention, a_broken_checkpoint_neither_counts_nor_is_removed) {
  const TempFolder run;
  save(run.path(), 1);
  save(run.path(), 2);
  save(run.path(), 3);
  remove_tree(run / "checkpoints/step_00000003/model.safetensors");
  mark_failed(run.path(), 2, "did not load");
  EXPECT_EQ(save(run.path(), 4, {2, 0}).removed, std::vector<std::int64_t>{});
  EXPECT_EQ(save(run.path(), 5, {2, 0}).removed, std::vector<std::int64_t>{1});
  EXPECT_EQ(steps_of(run.path()), (std::vector<std::int64_t>{2, 3, 4, 5}));
}

TEST(Resume, never_and_an_empty_run_start_anew) {
  const TempFolder run;
  EXPECT_FALSE(resolve_resume(run.path(), "auto").checkpoint.has_value());
  EXPECT_FALSE(resolve_resume(run / "none", "auto").checkpoint.has_value());
  save(run.path(), 1);
  EXPECT_FALSE(resolve_resume(run.path(), "never").checkpoint.has_value());
}

TEST(Resume, auto_takes_the_one_written_last_even_if_its_step_is_smaller) {
  const TempFolder run;
  save(run.path(), 100);
  save(run.path(), 200);
  EXPECT_EQ(resolve_resume(run.path(), "auto").checkpoint->step, 200);
  save(run.path(), 150);  // after a resume from 100
  EXPECT_EQ(resolve_resume(run.path(), "auto").checkpoint->step, 150);
  EXPECT_EQ(resolve_resume(run.path(), "200").checkpoint->step, 200);
  remove_tree(run / "checkpoints/latest");
  EXPECT_EQ(resolve_resume(run.path(), "auto").checkpoint->step, 150);
}

TEST(Resume, a_missing_incomplete_or_corrupted_step_names_the_newest_complete_one) {
  const TempFolder run;
  save(run.path(), 400);
  save(run.path(), 500);
  EXPECT_ERROR(resolve_resume(run.path(), "450"), ErrorCode::CheckpointNotFound, "no checkpoint of step 450",
               "newest complete: step 500");
  flip_bit(run / "checkpoints/step_00000500/model.safetensors", file_size(run / "checkpoints/step_00000500/model.safetensors") - 1,
           3);
  EXPECT_ERROR(resolve_resume(run.path(), "500"), ErrorCode::CheckpointCorrupted, "decoder.final_layernorm.weight",
               "newest complete: step 400");
  remove_tree(run / "checkpoints/step_00000500/manifest.json");
  EXPECT_ERROR(resolve_resume(run.path(), "500"), ErrorCode::CheckpointIncomplete, "no manifest", "newest complete: step 400",
               "--resume 400");
  EXPECT_ERROR(resolve_resume(run.path(), "newest"), ErrorCode::ResumeRequestInvalid, "auto, never or a step");
  EXPECT_ERROR(resolve_resume(run.path(), "-5"), ErrorCode::ResumeRequestInvalid, "-5");
  EXPECT_ERROR(CheckpointReader(run / "checkpoints/step_00000500"), ErrorCode::CheckpointIncomplete, "no manifest");
}

TEST(Resume, auto_marks_what_does_not_verify_and_never_tries_it_again) {
  const TempFolder run;
  save(run.path(), 1);
  save(run.path(), 2);
  const std::string file = run / "checkpoints/step_00000002/model.safetensors";
  flip_bit(file, file_size(file) - 1, 0);
  const ResumeChoice choice = resolve_resume(run.path(), "auto");
  EXPECT_EQ(choice.checkpoint->step, 1);
  ASSERT_EQ(choice.notes.size(), 1u);
  EXPECT_NE(choice.notes[0].find("step 2 passed over: failed: tensor 'decoder.final_layernorm.weight'"), std::string::npos)
      << choice.notes[0];
  flip_bit(file, file_size(file) - 1, 0);  // whole again, but marked
  EXPECT_EQ(resolve_resume(run.path(), "auto").checkpoint->step, 1);
  const ResumeChoice asked = resolve_resume(run.path(), "2");
  EXPECT_EQ(asked.checkpoint->step, 2);
  EXPECT_NE(asked.notes.at(0).find("was marked"), std::string::npos);
  save(run.path(), 2);  // written anew: the mark does not concern it
  EXPECT_EQ(resolve_resume(run.path(), "auto").checkpoint->step, 2);
}

TEST(Resume, only_broken_checkpoints_are_an_error_and_no_silent_new_start) {
  const TempFolder run;
  save(run.path(), 1);
  save(run.path(), 2);
  mark_failed(run.path(), 1, "layer 3 does not load");
  remove_tree(run / "checkpoints/step_00000002/optimizer.safetensors");
  EXPECT_ERROR(resolve_resume(run.path(), "auto"), ErrorCode::CheckpointIncomplete,
               "step 1 passed over: failed: layer 3 does not load",
               "step 2 passed over: incomplete: optimizer.safetensors is missing; 1 of 2 files whole", "--resume never");
}

TEST(Stale, temporary_folders_are_removed_and_interrupted_replacements_undone) {
  const TempFolder run;
  save(run.path(), 1);
  save(run.path(), 2);
  const std::string folder = run / "checkpoints";
  make_directories(folder + "/.tmp-step_00000003");
  write_file_atomically(folder + "/.tmp-step_00000003/model.safetensors", "half");
  rename_path(folder + "/step_00000002", folder + "/.old-step_00000002");
  const ResumeChoice choice = resolve_resume(run.path(), "auto");
  EXPECT_EQ(choice.checkpoint->step, 2);
  EXPECT_EQ(choice.notes.size(), 2u);
  EXPECT_EQ(list_directory(folder), (std::vector<std::string>{"latest", "step_00000001", "step_00000002"}));
}

TEST(Report, list_inspect_and_verify_print_text_and_json) {
  const TempFolder run;
  EXPECT_EQ(to_text(list_checkpoints(run.path())), "no checkpoints\n");
  save(run.path(), 7);
  save(run.path(), 8);
  remove_tree(run / "checkpoints/step_00000007/manifest.json");
  const std::vector<CheckpointSummary> list = list_checkpoints(run.path());
  const std::string text = to_text(list);
  EXPECT_NE(text.find("7  incomplete"), std::string::npos) << text;
  EXPECT_NE(text.find("no manifest"), std::string::npos) << text;
  EXPECT_NE(text.find("(latest)"), std::string::npos) << text;
  EXPECT_EQ(to_json(list)[1]["state"], "complete");
  EXPECT_EQ(to_json(list)[1]["latest"], true);
  const InspectReport inspected = inspect_checkpoint(run / "checkpoints/step_00000008");
  EXPECT_EQ(inspected.elements, 11);
  EXPECT_NE(to_text(inspected).find("embedding.word_embeddings.weight"), std::string::npos);
  EXPECT_EQ(to_json(inspected)["tensors"].size(), 3u);
  EXPECT_EQ(to_json(inspected)["state"]["consumed_samples"], 64);
  EXPECT_EQ(to_json(verify_checkpoint(inspected.path))["good"], true);
}

}  // namespace
}  // namespace deltron
