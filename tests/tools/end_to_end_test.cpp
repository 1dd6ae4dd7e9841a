// Whole command lines on a tiny run: from text to tokens, training, evaluation, generation and checkpoints, with exit codes and JSON.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "src/base/build_options.h"
#include "tests/tools/run_cli.h"
#include "tests/train/train_test_support.h"

namespace deltron::tools {
namespace {

using deltron::testing::CliResult;
using deltron::testing::run_cli;
using ::testing::HasSubstr;
using nlohmann::json;

// One text, its tokens and one trained run, made by the commands themselves and shared by the tests below, which only read them.
class EndToEnd : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write_file_atomically(*folder_ / "text.txt", test::made_text(40, 200));
    write_file_atomically(*folder_ / "tiny.yaml", R"(
model: { num_layers: 2, hidden_size: 32, ffn_hidden_size: 32, vocab_size: 264, experimental_attention_variant: gdn, linear_attention_freq: [1, 0],
         linear_num_key_heads: 2, linear_num_value_heads: 2, linear_key_head_dim: 8, linear_value_head_dim: 8, num_attention_heads: 2 }
training: { device: cpu, micro_batch_size: 2, global_batch_size: 4, seq_length: 32, train_iters: 8, threads: 1 }
optimizer: { lr: 3.0e-3 }
data: { data_path: [)" + (*folder_ / "tokens") + R"(] }
checkpoint: { save: )" + run() + R"(, save_interval: 4 }
logging: { log_interval: 2 }
)");
    prepared_ = run_cli({"data", "prepare", *folder_ / "text.txt", "--output", *folder_ / "tokens", "--json"});
    trained_ = run_cli({"train", "-c", *folder_ / "tiny.yaml"});
    set_log_file("");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string run() { return *folder_ / "run"; }
  static std::string config() { return *folder_ / "tiny.yaml"; }
  // A copy of the run that a test may change.
  static std::string own_copy(const std::string& name) {
    const std::string copy = *folder_ / name;
    std::filesystem::copy(run(), copy, std::filesystem::copy_options::recursive);
    return copy;
  }

  static TempFolder* folder_;
  static CliResult prepared_, trained_;
};
TempFolder* EndToEnd::folder_ = nullptr;
CliResult EndToEnd::prepared_, EndToEnd::trained_;

json parsed(const CliResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(json::accept(result.out)) << result.out;
  return json::accept(result.out) ? json::parse(result.out) : json();
}

TEST_F(EndToEnd, data_are_prepared_indexed_and_inspected) {
  EXPECT_FALSE(parsed(prepared_).empty());
  EXPECT_TRUE(file_exists(*folder_ / "tokens.bin"));
  EXPECT_FALSE(parsed(run_cli({"data", "index", "-c", config(), "--json"})).empty());
  EXPECT_FALSE(parsed(run_cli({"data", "inspect", *folder_ / "tokens", "--split", "90,10,0", "--verify", "--json"})).empty());
  const CliResult dumped = run_cli({"data", "inspect", *folder_ / "tokens", "--split", "90,10,0", "--dump", "valid", "--dump-to", *folder_ / "valid.txt"});
  EXPECT_EQ(dumped.code, 0) << dumped.err;
  EXPECT_THAT(test::made_text(40, 200), HasSubstr(read_file(*folder_ / "valid.txt").substr(0, 100)));
}

TEST_F(EndToEnd, training_tells_what_it_did_and_a_second_call_has_nothing_left) {
  EXPECT_EQ(trained_.code, 0) << trained_.err;
  EXPECT_THAT(trained_.out, HasSubstr("trained 8 steps, loss "));
  EXPECT_THAT(trained_.out, HasSubstr(run()));
  for (const char* part : {"step 8/8", "grad norm", "tok/s", "saved step 4", "saved step 8"}) EXPECT_THAT(trained_.err, HasSubstr(part));
  const CliResult again = run_cli({"train", "-c", config()});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("nothing left to train: step 8 of 8"));
  const CliResult from_run = run_cli({"train", "-c", join_path(run(), "config.yaml")});
  EXPECT_EQ(from_run.code, 0) << from_run.err;
}

TEST_F(EndToEnd, evaluation_as_text_and_json_agree) {
  const CliResult text = run_cli({"evaluate", run()});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("bits per character"));
  const json full = parsed(run_cli({"evaluate", run(), "--json"}));
  EXPECT_EQ(full.at("step"), 8);
  EXPECT_EQ(full.at("split"), "valid");
  EXPECT_NEAR(full.at("bits_per_character").get<double>(),
              full.at("loss").get<double>() * full.at("predictions").get<double>() / std::log(2.0) / full.at("characters").get<double>(), 1e-9);
  const json early = parsed(run_cli({"evaluate", run(), "--step", "4", "--split", "train", "--seq-length", "64", "--json"}));
  EXPECT_EQ(early.at("step"), 4);
  EXPECT_GT(early.at("predictions").get<int>(), full.at("predictions").get<int>());
}

// Text whose next letter depends on the letter before the last: a b a c a b a c ... Without the mixers only the last letter is seen, and
// after every a two letters are equally likely: half of the predictions cost ln 2.
TEST_F(EndToEnd, ablation_shows_that_the_mixers_do_the_work) {
  std::string text;
  for (int d = 0; d < 40; ++d) {
    for (int i = 0; i < 60; ++i) text += "abac";
    text += "\n\n";
  }
  write_file_atomically(*folder_ / "pattern.txt", text);
  write_file_atomically(*folder_ / "pattern.yaml", R"(
model: { num_layers: 1, hidden_size: 32, ffn_hidden_size: 32, vocab_size: 264, experimental_attention_variant: gdn, linear_attention_freq: [1],
         linear_num_key_heads: 2, linear_num_value_heads: 2, linear_key_head_dim: 8, linear_value_head_dim: 8 }
training: { device: cpu, micro_batch_size: 4, global_batch_size: 4, seq_length: 64, train_iters: 120, threads: 1 }
optimizer: { lr: 1.0e-2, lr_warmup_iters: 10 }
data: { data_path: [)" + (*folder_ / "pattern") + R"(] }
checkpoint: { save: )" + (*folder_ / "pattern_run") + R"( }
)");
  ASSERT_EQ(run_cli({"data", "prepare", *folder_ / "pattern.txt", "--output", *folder_ / "pattern"}).code, 0);
  ASSERT_EQ(run_cli({"train", "-c", *folder_ / "pattern.yaml"}).code, 0);
  set_log_file("");
  const double whole = parsed(run_cli({"evaluate", *folder_ / "pattern_run", "--json"})).at("loss").get<double>();
  const double ablated = parsed(run_cli({"evaluate", *folder_ / "pattern_run", "--ablate", "linear-mixers", "--json"})).at("loss").get<double>();
  EXPECT_LT(whole, 0.15);
  EXPECT_GT(ablated, 0.9 * std::log(2.0) / 2);
  EXPECT_GT(ablated, 3 * whole);
}

TEST_F(EndToEnd, generation_repeats_with_its_seed_and_begins_with_the_prompt) {
  const std::vector<std::string> line = {"generate", run(), "--prompt", "abc ", "--max-tokens", "30", "--seed", "5"};
  const CliResult first = run_cli(line), second = run_cli(line);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out.rfind("abc ", 0), 0U);
  EXPECT_GT(first.out.size(), 10U);
  EXPECT_EQ(first.out, second.out);
  std::vector<std::string> other = line;
  other.back() = "6";
  EXPECT_NE(run_cli(other).out, first.out);
}

TEST_F(EndToEnd, checkpoints_are_listed_inspected_and_verified) {
  const CliResult listed = run_cli({"checkpoint", "list", run()});
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("4"));
  EXPECT_THAT(listed.out, HasSubstr("8"));
  EXPECT_FALSE(parsed(run_cli({"checkpoint", "list", run(), "--json"})).empty());
  const CliResult inspected = run_cli({"checkpoint", "inspect", run()});
  EXPECT_THAT(inspected.out, HasSubstr("decoder.layers.0.self_attention.A_log"));
  EXPECT_FALSE(parsed(run_cli({"checkpoint", "inspect", checkpoint_path(run(), 4), "--json"})).empty());
  EXPECT_EQ(run_cli({"checkpoint", "verify", run()}).code, 0);
  EXPECT_FALSE(parsed(run_cli({"checkpoint", "verify", run(), "--json"})).empty());
}

TEST_F(EndToEnd, a_resharded_run_evaluates_to_the_same_loss) {
  const std::string cut = *folder_ / "cut", whole = *folder_ / "whole";
  EXPECT_EQ(parsed(run_cli({"checkpoint", "reshard", run(), "--output", cut, "--pieces", "3", "--json"})).at("pieces"), 3);
  const CliResult joined = run_cli({"checkpoint", "reshard", cut, "--output", whole});
  EXPECT_THAT(joined.out, HasSubstr("1 piece a tensor"));
  const json loss = parsed(run_cli({"evaluate", run(), "--json"})).at("loss");
  EXPECT_EQ(parsed(run_cli({"evaluate", cut, "--json"})).at("loss"), loss);
  EXPECT_EQ(parsed(run_cli({"evaluate", whole, "--json"})).at("loss"), loss);
  EXPECT_EQ(run_cli({"checkpoint", "reshard", run(), "--output", cut}).code, 4);
  EXPECT_EQ(run_cli({"checkpoint", "reshard", run(), "--output", cut, "--pieces", "0"}).code, 2);
  EXPECT_EQ(run_cli({"checkpoint", "reshard", run()}).code, 2);
}

TEST_F(EndToEnd, a_flipped_byte_is_a_checkpoint_failure_and_resume_takes_the_one_before) {
  const std::string copy = own_copy("flipped");
  const std::string path = checkpoint_path(copy, 8);
  std::string file;
  for (const std::string& name : list_directory(path)) {
    if (name.find(".safetensors") != std::string::npos) file = join_path(path, name);
  }
  std::string content = read_file(file);
  content[content.size() - 5] = static_cast<char>(content[content.size() - 5] ^ 1);
  write_file_atomically(file, content);
  const CliResult verified = run_cli({"checkpoint", "verify", path});
  EXPECT_EQ(verified.code, 4);
  const CliResult resumed = run_cli({"train", "-c", config(), "checkpoint.save=" + copy});
  set_log_file("");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("step 8 passed over"));
  EXPECT_THAT(resumed.out, HasSubstr("trained 8 steps"));
  EXPECT_EQ(test::tensor_hashes(copy, 8), test::tensor_hashes(run(), 8));
}

TEST_F(EndToEnd, plan_and_bench_step_run_and_agree_on_the_peak) {
  const json plan = parsed(run_cli({"plan", "-c", config(), "--json"}));
  EXPECT_GT(plan.at("peak_bytes").get<double>(), 0);
  EXPECT_THAT(run_cli({"plan", "-c", config()}).out, HasSubstr("at its peak"));
  const json bench = parsed(run_cli({"bench", "step", "-c", config(), "--steps", "3", "--warm-up", "1", "--json"}));
  EXPECT_GT(bench.at("tokens_per_second").get<double>(), 0);
  EXPECT_EQ(bench.at("tokens_per_step"), 128);
  EXPECT_EQ(bench.at("planned_peak_bytes"), plan.at("peak_bytes"));
  EXPECT_NEAR(bench.at("peak_bytes").get<double>(), plan.at("peak_bytes").get<double>(), 0.05 * plan.at("peak_bytes").get<double>());
  const CliResult text = run_cli({"bench", "step", "-c", config(), "--steps", "1", "--warm-up", "0"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("tokens per second"));
}

TEST_F(EndToEnd, a_dry_run_prints_the_plan_and_writes_no_run) {
  const std::string target = *folder_ / "dry";
  const CliResult result = run_cli({"train", "-c", config(), "--dry-run", "checkpoint.save=" + target});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("parameters"));
  EXPECT_THAT(result.out, HasSubstr("windows of " + (*folder_ / "tokens")));
  EXPECT_FALSE(directory_exists(target));
}

TEST_F(EndToEnd, every_shipped_configuration_survives_a_dry_run) {
  const std::string folder = std::string(DELTRON_SOURCE_DIR) + "/configs";
  int count = 0;
  for (const std::string& name : list_directory(folder)) {
    if (name.size() < 5 || name.substr(name.size() - 5) != ".yaml") continue;
    std::vector<std::string> line = {"train", "-c", join_path(folder, name), "--dry-run"};
    const RunConfig shipped = load_run_config(join_path(folder, name));
    if (shipped.training.device == DeviceKind::Cuda && DELTRON_HAVE_CUDA == 0) {  // the sizes of its kernels are in builds with CUDA
      line.push_back("data.data_path=[" + (*folder_ / "tokens") + "]");
      EXPECT_THAT(run_cli(line).err, HasSubstr("E126 ")) << name;
      continue;
    }
    if (!shipped.checkpoint.save.empty()) line.push_back("checkpoint.save=" + (*folder_ / "unused"));
    if (!shipped.data.data_path.empty()) {
      const CliResult missing = run_cli({"train", "-c", join_path(folder, name), "--dry-run", "data.data_path=[" + (*folder_ / "nothing") + "]"});
      EXPECT_EQ(missing.code, 3) << name << ": " << missing.err;
      EXPECT_THAT(missing.err, HasSubstr(*folder_ / "nothing"));
      line.push_back("data.data_path=[" + (*folder_ / "tokens") + "]");
    }
    const CliResult result = run_cli(line);
    EXPECT_EQ(result.code, 0) << name << ": " << result.err;
    EXPECT_THAT(result.out, HasSubstr("at its peak")) << name;
    ++count;
  }
  EXPECT_GE(count, 2);
}

TEST_F(EndToEnd, every_fault_has_its_exit_code_and_names_the_way_out) {
  struct Row {
    std::vector<std::string> line;
    int code;
    std::string message;
  };
  const std::string empty = *folder_ / "empty_run";
  make_directories(empty);
  write_file_atomically(join_path(empty, "config.yaml"), read_file(join_path(run(), "config.yaml")));
  const std::vector<Row> rows = {
      {{"trian", "-c", config()}, 2, "did you mean 'train'?"},
      {{"train"}, 2, "--config is missing"},
      {{"train", "-c", config(), "--dry-rnu"}, 2, "did you mean '--dry-run'?"},
      {{"train", "-c", config(), "optimizer.lrr=1"}, 2, "did you mean 'lr'?"},
      {{"train", "-c", config(), "optimizer.lr=fast"}, 2, "optimizer.lr"},
      {{"train", "-c", config(), "training.micro_batch_size=3"}, 2, "3 or 6"},
      {{"train", "-c", config(), "--resume", "sometimes"}, 2, "sometimes"},
      {{"train", "-c", config(), "--minutes", "-1"}, 2, "--minutes"},
      {{"train", "-c", *folder_ / "nothing.yaml"}, 2, "nothing.yaml"},
      {{"train", "-c", config(), "data.data_path=[" + (*folder_ / "nothing") + "]", "checkpoint.save=" + (*folder_ / "x")}, 3, "nothing"},
      {{"train", "-c", config(), "data.tokenizer=none", "model.vocab_size=100", "checkpoint.save=" + (*folder_ / "y")}, 3, "vocab_size 100"},
      {{"train", "-c", config(), "--resume", "5"}, 4, "newest complete: step 8"},
      {{"train", "-c", config(), "--resume", "never"}, 4, "holds a run already"},
      {{"evaluate", empty}, 4, "no complete checkpoint"},
      {{"evaluate", run(), "--step", "5"}, 4, "newest complete: step 8"},
      {{"evaluate", run(), "--split", "vaild"}, 2, "did you mean 'valid'?"},
      {{"evaluate", run(), "--split", "test"}, 3, "split 'test' is empty"},
      {{"generate", run(), "--top-p", "0"}, 2, "--top-p"},
      {{"generate", run(), "--temperature", "-1"}, 2, "--temperature"},
      {{"generate", empty}, 4, "no complete checkpoint"},
      {{"data", "prepare", *folder_ / "nothing.txt", "-o", *folder_ / "z"}, 3, "nothing.txt"},
      {{"data", "prepare", *folder_ / "text.txt"}, 2, "--output is missing"},
      {{"data", "inspect", *folder_ / "nothing"}, 3, "deltron data prepare"},
      {{"checkpoint", "inspect", empty}, 4, ""},
      {{"bench", "step", "-c", config(), "--steps", "0"}, 2, "--steps"},
  };
  for (const Row& row : rows) {
    const CliResult result = run_cli(row.line);
    set_log_file("");
    std::string line;
    for (const std::string& word : row.line) line += " " + word;
    EXPECT_EQ(result.code, row.code) << line << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(row.message)) << line;
    EXPECT_THAT(result.err, HasSubstr("error: E")) << line;
  }
  const CliResult verified = run_cli({"checkpoint", "verify", empty});  // a verdict, so on stdout
  EXPECT_EQ(verified.code, 4);
  EXPECT_THAT(verified.out, HasSubstr("manifest.json"));
  EXPECT_EQ(run_cli({"checkpoint", "verify", run()}).code, 0) << "the run is as it was";
}

}  // namespace
}  // namespace deltron::tools
