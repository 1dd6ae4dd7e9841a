// Every code of the error table is reached: a row makes the fault happen through the API or the command line, and the message must begin
// with the code and say where and what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "distributed/rank_environment.h"
#include "distributed/tcp_store.h"
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/hf_model.h"
#include "src/checkpoint/resume.h"
#include "src/checkpoint/writer.h"
#include "src/config/loader.h"
#include "src/config/schema.h"
#include "src/train/memory_advice.h"
#include "src/train/plan.h"
#include "tests/tools/run_cli.h"
#include "tests/trust/tiny_run.h"
#include "tools/verify/verify.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using testing::Folder;

constexpr const char* kModel =
    "model: {num_layers: 1, hidden_size: 16, ffn_hidden_size: 16, vocab_size: 264, num_attention_heads: 2}\n"
    "training: {seq_length: 8, train_iters: 4}\noptimizer: {lr: 0.001}\n";

void load(const std::string& extra, const std::vector<std::string>& overrides = {}) { load_config_text(kModel + extra, "t.yaml", overrides); }
void load_alone(const std::string& text) { load_config_text(text, "t.yaml"); }

std::string bytes_of(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

// Rank 0 of two; the other one tells of a file that it wrote on a disk of its own.
class OtherNode : public SaveGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::vector<std::string> exchange(const std::string& mine) override {
    if (++stage_ == 1) return {mine, "+8"};
    return {mine, stage_ == 3 ? "+" + part_to_text({{{"model-rank00001.safetensors", 8, "0123456789abcdef"}}, {}}) : "+"};
  }

 private:
  int stage_ = 0;
};

// A safetensors file with this header and data.
std::string tensor_file(const Folder& folder, const std::string& header, const std::string& data) {
  const std::string path = folder / "t.safetensors";
  write_file_atomically(path, bytes_of(header.size()) + header + data);
  return path;
}
std::string sound_file(const Folder& folder) {
  return tensor_file(folder, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", std::string(4, '\0'));
}

// The golden model with one file changed.
std::string changed_model(const Folder& folder, const std::string& from, const std::string& to) {
  const std::string golden = std::string(DELTRON_SOURCE_DIR) + "/tests/golden/hf_qwen3_5_tiny";
  std::string config = read_file(golden + "/config.json");
  const std::size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  config.replace(at, from.size(), to);
  write_file_atomically(folder / "config.json", config);
  write_file_atomically(folder / "model.safetensors", read_file(golden + "/model.safetensors"));
  return folder / "";
}

CheckpointContent small_content(std::int64_t step, const HostArray& array) {
  CheckpointContent content;
  content.step = step;
  content.groups.push_back({"model", {array.view()}});
  return content;
}

// A run with steps 1 and 2 of one tensor [4].
std::string small_run(const Folder& folder) {
  const HostArray array = from_doubles("w", DType::F32, {4}, {1, 2, 3, 4});
  for (std::int64_t step : {1, 2}) save_checkpoint(folder / "r", small_content(step, array));
  return folder / "r";
}

void flip_byte(const std::string& path, std::size_t from_end) {
  std::string bytes = read_file(path);
  bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 1);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
}

DataOptions data_of(const std::string& prefix, const std::string& split) {
  DataOptions options;
  options.data_path = {prefix};
  options.split = split;
  options.vocab_size = 264;
  options.seq_length = 8;
  return options;
}

using Provoke = std::function<void(const Folder&)>;

const std::map<int, Provoke>& rows() {
  static const std::map<int, Provoke> table = {
      {100, [](const Folder&) { parse_nan_injection("nonsense"); }},
      {101, [](const Folder& folder) { read_file(folder / "none"); }},
      {102, [](const Folder&) { load_alone("model: [\n"); }},
      {103, [](const Folder&) { load("loging: {log_interval: 2}\n"); }},
      {104, [](const Folder&) { load("logging: {log_interval: 1e3}\n"); }},
      {105, [](const Folder&) { load("logging: {log_interval: 0}\n"); }},
      {106, [](const Folder&) { load("data: {packing: boxes}\n"); }},
      {107, [](const Folder&) { load("logging: {log_interval: 2, log_interval: 3}\n"); }},
      {108, [](const Folder&) { load("logging: &here {log_interval: 2}\n"); }},
      {109, [](const Folder&) { load("", {"lr=1"}); }},
      {120, [](const Folder&) { load_alone("model: {num_layers: 1}\n"); }},
      {121, [](const Folder&) { load("", {"training.global_batch_size=3", "training.micro_batch_size=2"}); }},
      {122, [](const Folder&) { load("", {"training.eval_iters=3"}); }},
      {123, [](const Folder&) { load("", {"parallel.pipeline_model_parallel_size=2"}); }},
      {124, [](const Folder&) { load("", {"training.deterministic_mode=false"}); }},
      {127,
       [](const Folder& folder) {
         RunConfig config = testing::tiny_config(folder);
         write_file_atomically(folder / "file", "");
         config.checkpoint.save = folder / "file/run";
         train(config, {});
       }},
      {300,
       [](const Folder& folder) {
         testing::make_tokens(folder / "a", 3, 1);
         flip_byte(folder / "a.idx", read_file(folder / "a.idx").size());
         open_dataset(folder / "a", "byte", 257);
       }},
      {301,
       [](const Folder& folder) {
         testing::make_tokens(folder / "a", 3, 1);
         open_dataset(folder / "a", "byte", 100);
       }},
      {302,
       [](const Folder& folder) {
         write_file_atomically(folder / "t.jsonl", "{\"content\": \"x\"}\n");
         PrepareOptions options;
         options.inputs = {folder / "t.jsonl"};
         options.output = folder / "out";
         prepare_data(options);
       }},
      {303,
       [](const Folder& folder) {
         write_file_atomically(folder / "t.txt", "");
         PrepareOptions options;
         options.inputs = {folder / "t.txt"};
         options.output = folder / "out";
         prepare_data(options);
       }},
      {304,
       [](const Folder& folder) {
         testing::make_tokens(folder / "a", 3, 1);
         make_sample_source(data_of(folder / "a", "90,ten"), Split::Train, 1);
       }},
      {305,
       [](const Folder& folder) {
         testing::make_tokens(folder / "a", 3, 1);
         open_dataset(folder / "a", "gpt2", 257);
       }},
      {306,
       [](const Folder& folder) {
         testing::make_tokens(folder / "a", 3, 1);
         BatchLoader(make_sample_source(data_of(folder / "a", "1,0,0"), Split::Train, 2), 2).batch(1000);
       }},
      {307,
       [](const Folder& folder) {
         PrepareOptions options;
         options.inputs = {folder / "none.txt"};
         options.output = folder / "out";
         prepare_data(options);
       }},
      {320,
       [](const Folder& folder) {
         make_directories(folder / "golden");
         tools::verify({.path = folder / "golden"}, {});
       }},
      {390,
       [](const Folder&) {
         Context ctx;
         SequenceLayout(ctx, {0, 4}, 5);
       }},
      {391,
       [](const Folder&) {
         Context ctx;
         const auto layout = std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx, 1, 4));
         gated_delta_rule(ctx, {}, layout, {.key_heads = 2, .value_heads = 3, .key_dim = 8, .value_dim = 8}, "rule");
       }},
      {400,
       [](const Folder& folder) {
         RunConfig config = testing::tiny_config(folder);
         config.training.train_iters = 1;
         config.optimizer.lr_warmup_iters = 0;
         train(config, {});
         const CheckpointReader reader(checkpoint_path(config.checkpoint.save, 1));
         CheckpointContent content;
         content.step = 1;
         TensorGroup group{"model", {}};
         for (const std::string& name : reader.names()) group.tensors.push_back(reader.view(name));
         content.groups.push_back(group);
         save_checkpoint(config.checkpoint.save, content);  // without the trainer's state
         train(config, {});
       }},
      {401,
       [](const Folder& folder) {
         write_file_atomically(folder / "t.safetensors", bytes_of(500) + "{}");
         SafetensorsFile(folder / "t.safetensors");
       }},
      {402, [](const Folder& folder) { SafetensorsFile(tensor_file(folder, "{\"a\": 1}", "")); }},
      {403,
       [](const Folder& folder) { SafetensorsFile(tensor_file(folder, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "01234567")); }},
      {404, [](const Folder& folder) { SafetensorsFile(sound_file(folder)).view("b"); }},
      {405,
       [](const Folder& folder) {
         SafetensorsFile(tensor_file(folder, R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", "0123")).view("a");
       }},
      {406,
       [](const Folder& folder) {
         write_file_atomically(folder / "model.safetensors.index.json", "{}");
         SafetensorsFolder(folder / "");
       }},
      {407,
       [](const Folder& folder) {
         const CheckpointReader reader(checkpoint_path(small_run(folder), 1));
         reader.view("w", {5});
       }},
      {408, [](const Folder& folder) { SafetensorsFolder(folder / ""); }},
      {430,
       [](const Folder& folder) {
         const std::string path = checkpoint_path(small_run(folder), 2);
         flip_byte(join_path(path, kManifestFile), 5);
         read_manifest(path);
       }},
      {431,
       [](const Folder& folder) {
         const std::string run = small_run(folder);
         std::remove(join_path(checkpoint_path(run, 2), kManifestFile).c_str());
         resolve_resume(run, "2");
       }},
      {432, [](const Folder& folder) { resolve_resume(small_run(folder), "7"); }},
      {433,
       [](const Folder& folder) {
         const std::string run = small_run(folder);
         flip_byte(join_path(checkpoint_path(run, 2), "model.safetensors"), 1);
         resolve_resume(run, "2");
       }},
      {434,
       [](const Folder& folder) {
         HostArray array = make_array("w", DType::F32, {4});
         CheckpointContent content = small_content(1, array);
         content.groups[0].tensors[0].view.bytes = std::size_t{1} << 60;  // what the check counts; nothing is read
         make_directories(checkpoints_folder(folder / "r"));
         check_free_space(folder / "r", content);
       }},
      {435, [](const Folder& folder) { CheckpointReader(checkpoint_path(small_run(folder), 1)).require_names({"w", "v"}, false); }},
      {436, [](const Folder& folder) { resolve_resume(small_run(folder), "newest"); }},
      {437,
       [](const Folder& folder) {
         HostArray array = make_array("w", DType::F32, {4});
         OtherNode other;
         SaveOptions options;
         options.ranks = &other;
         save_checkpoint(folder / "r", small_content(1, array), options);
       }},
      {450,
       [](const Folder& folder) {
         RunConfig config = testing::tiny_config(folder);
         make_directories(config.checkpoint.save);
         write_file_atomically(join_path(config.checkpoint.save, "letter.txt"), "mine");
         train(config, {});
       }},
      {470, [](const Folder&) { parse_hf_config("{\"model_type\": \"qwen3_5_text\"}", "config.json"); }},
      {471, [](const Folder& folder) { HfModel(changed_model(folder, "\"silu\"", "\"gelu\"")); }},
      {472, [](const Folder& folder) { HfModel(changed_model(folder, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false")); }},
      {473, [](const Folder& folder) { HfModel(changed_model(folder, "\"intermediate_size\": ", "\"intermediate_size\": 1")); }},
      {500,
       [](const Folder& folder) {
         RunConfig config = testing::tiny_config(folder);
         config.training.memory_limit_gib = 1e-4;
         train(config, {});
       }},
      {600,
       [](const Folder& folder) {
         TrainOptions options;
         options.inject_nan = parse_nan_injection("step=1,param=embedding.word_embeddings.weight");
         train(testing::tiny_config(folder), options);
       }},
      {700, [](const Folder&) { TcpStore("127.0.0.1", 1, "job", 1, 2, 0.05); }},
      {701, [](const Folder&) { read_rank_environment({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "29500"}}); }},
      {800, [](const Folder&) { DELTRON_CHECK(1 + 1 == 3, "sum"); }},
      {801, [](const Folder& folder) { FileWriter(folder / "no/such/folder/file"); }},
  };
  return table;
}

// Codes that no error carries alone, and why.
const std::map<int, std::string>& unreachable() {
  static const std::map<int, std::string> codes = {
      {110, "the code of several faults together; each line has a code of its own (see the test of 110)"},
  };
  return codes;
}

// Codes whose fault takes a machinery that has a test of its own: file, and what stands in it.
const std::map<int, std::pair<std::string, std::string>>& reached_elsewhere() {
  static const std::map<int, std::pair<std::string, std::string>> codes = {
      {125, {"tests/autograd/offload_protocol_test.cpp", "ErrorCode::ConfigModuleNeverRan"}},
      {126, {"tests/tools/verify_test.cpp", "E126 training.device or --device"}},  // only where there is no GPU
      {802, {"tests/gpu/device_test.cpp", "ErrorCode::DeviceFailed"}},
  };
  return codes;
}

class EveryError : public ::testing::TestWithParam<int> {};

TEST_P(EveryError, is_reached_with_code_place_and_fix) {
  const int number = GetParam();
  const Folder folder("error_" + std::to_string(number));
  const std::string code = "E" + std::to_string(number) + " ";
  try {
    rows().at(number)(folder);
  } catch (const Error& error) {
    const std::string message = error.what();
    // Faults of a configuration come together, a line each.
    const bool together = error.code() == ErrorCode::ConfigInvalid && message.find("\n" + code) != std::string::npos;
    EXPECT_TRUE(message.rfind(code, 0) == 0 || together) << message;
    const ErrorEntry& entry = error_entry(static_cast<ErrorCode>(number));
    EXPECT_EQ(error.exit_code(), entry.exit_code) << message;
    if (static_cast<int>(error.code()) == number && number != 800) {
      EXPECT_FALSE(error.text().where.empty()) << message;
      EXPECT_FALSE(error.text().what.empty()) << message;
    }
    return;
  }
  FAIL() << code << "was not reached";
}

std::vector<int> reached() {
  std::vector<int> numbers;
  for (const auto& [number, provoke] : rows()) numbers.push_back(number);
  return numbers;
}
INSTANTIATE_TEST_SUITE_P(codes, EveryError, ::testing::ValuesIn(reached()), [](const auto& param) { return "E" + std::to_string(param.param); });

TEST(Errors, every_code_has_a_row_or_a_reason) {
  for (const ErrorEntry& entry : error_table()) {
    const int number = static_cast<int>(entry.code);
    const bool has_row = rows().count(number) == 1, has_reason = unreachable().count(number) == 1;
    const bool elsewhere = reached_elsewhere().count(number) == 1;
    EXPECT_EQ(has_row + has_reason + elsewhere, 1) << "E" << number << " " << entry.title;
  }
  for (const auto& [number, reason] : unreachable()) std::cout << "not reached: E" << number << ": " << reason << "\n";
  for (const auto& [number, place] : reached_elsewhere()) {
    EXPECT_THAT(read_file(std::string(DELTRON_SOURCE_DIR) + "/" + place.first), HasSubstr(place.second));
  }
  std::cout << rows().size() + reached_elsewhere().size() << " codes reached of " << error_table().size() << "\n";
}

TEST(Errors, several_faults_of_a_configuration_come_together_with_the_exit_code_of_usage) {
  try {
    load("logging: {log_interval: 0, log_intervall: 3}\n", {"training.eval_iters=3"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::ConfigInvalid);
    EXPECT_EQ(error.exit_code(), ExitCode::Usage);
    for (const char* code : {"E105 t.yaml:4:", "E103 t.yaml:4:", "E122 "}) EXPECT_THAT(error.what(), HasSubstr(code));
  }
}

// A code without a thrower would stand in docs/errors.md for nothing.
TEST(Errors, every_code_is_named_by_the_source) {
  std::string source;
  for (const char* folder : {"src", "kernels", "distributed", "tools"}) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(std::string(DELTRON_SOURCE_DIR) + "/" + folder)) {
      if (file.path().extension() == ".cpp" || file.path().extension() == ".h") source += read_file(file.path().string());
    }
  }
  for (const ErrorEntry& entry : error_table()) {
    EXPECT_THAT(source, ::testing::ContainsRegex("ErrorCode::" + std::string(entry.name) + "[^A-Za-z]")) << "E" << static_cast<int>(entry.code);
  }
}

// The last message decides the exit code of the process: one command a class.
TEST(Errors, commands_end_with_the_exit_code_of_their_class) {
  const Folder folder("exit_codes");
  RunConfig config = testing::tiny_config(folder);
  const std::string path = folder / "config.yaml";
  write_file_atomically(path, to_yaml(config));
  const auto code_of = [&](std::vector<std::string> words) { return testing::run_cli(words).code; };
  EXPECT_EQ(code_of({"train", "-c", path, "training.seq_length=x"}), 2);
  EXPECT_EQ(code_of({"data", "inspect", folder / "none"}), 3);
  EXPECT_EQ(code_of({"train", "-c", path, "training.memory_limit_gib=0.0001", "checkpoint.save=" + folder / "m"}), 5);
  EXPECT_EQ(code_of({"train", "-c", path, "--inject-nan", "step=2,param=decoder.layers.0.self_attention.dt_bias"}), 6);
  EXPECT_EQ(code_of({"train", "-c", path, "training.exit_interval=5"}), 75);
  EXPECT_EQ(code_of({"train", "-c", path, "--resume", "3"}), 4);
  EXPECT_EQ(code_of({"train", "-c", path, "training.exit_interval=0"}), 0);
}

// Out of memory: the table by tag, and the cheapest change that fits, which then does run.
TEST(Memory, the_error_names_a_remedy_that_works) {
  const Folder folder("memory");
  RunConfig config = testing::tiny_config(folder);
  config.checkpoint.save = "";
  config.training.micro_batch_size = 8;
  config.training.global_batch_size = 8;
  config.training.seq_length = 64;
  config.training.train_iters = 2;
  RunConfig small = config;
  small.training.micro_batch_size = 2;
  const double gib = 1024.0 * 1024.0 * 1024.0;
  config.training.memory_limit_gib = static_cast<double>(make_plan(small).memory.peak) * 1.1 / gib;
  try {
    train(config, {});
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
    for (const char* part : {"weights ", "activations ", "optimizer state ", "capacity ", "by plan"}) EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_THAT(error.text().fix, HasSubstr("training.micro_batch_size=2 (same global batch, more accumulation) saves "));
  }
  small.training.memory_limit_gib = config.training.memory_limit_gib;
  EXPECT_EQ(train(small, {}).losses.size(), 2u);
  EXPECT_THAT(to_text(make_plan(config)), HasSubstr("does not fit"));
  EXPECT_THAT(to_text(make_plan(small)), HasSubstr(": fits"));
  // The plan on the limit itself: the remedies' peaks fall with the micro-batch.
  std::int64_t before = make_plan(config).memory.peak;
  for (const MemoryRemedy& remedy : memory_remedies(config)) {
    if (remedy.change.rfind("training.micro_batch_size", 0) != 0) continue;
    EXPECT_LT(remedy.peak, before) << remedy.change;
    before = remedy.peak;
  }
}

TEST(Memory, a_model_that_never_fits_says_so) {
  const Folder folder("memory_model");
  RunConfig config = testing::tiny_config(folder);
  config.checkpoint.save = "";
  config.training.memory_limit_gib = 1e-4;
  try {
    train(config, {});
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_THAT(error.text().fix, HasSubstr("a smaller model: this configuration needs "));
  }
}

}  // namespace
}  // namespace deltron
