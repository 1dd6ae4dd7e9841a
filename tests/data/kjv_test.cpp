// The example corpus end to end: script, preparation, split and the compressors' figures on exactly the held-out text.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "src/data/data_source.h"
#include "src/data/inspect.h"
#include "src/data/prepare.h"
#include "tests/data/data_test_support.h"

namespace deltron {
namespace {

std::string output_of(const std::string& command, int* status) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  *status = pclose(pipe);
  return text;
}

TEST(Kjv, chapters_are_documents_and_compressors_see_what_the_model_is_charged_for) {
  int status = 0;
  output_of("command -v bible gzip bzip2 awk >/dev/null 2>&1", &status);
  // scripts/setup.sh installs them before CI runs the tests, so there a machine without them is a fault.
  const char* ci = std::getenv("CI");
  const bool required = ci != nullptr && *ci != '\0' && std::string(ci) != "false" && std::string(ci) != "0";
  if (status != 0 && required) FAIL() << "bible-kjv, gzip, bzip2 or awk is not installed, and CI is set (scripts/setup.sh installs them)";
  if (status != 0) GTEST_SKIP() << "bible-kjv, gzip, bzip2 or awk is not installed (scripts/setup.sh installs them)";
  const ScratchFolder folder;
  const std::string scripts = std::string(DELTRON_SOURCE_DIR) + "/scripts/";
  output_of("'" + scripts + "prepare_kjv.sh' '" + folder.path() + "' 2>&1", &status);
  ASSERT_EQ(status, 0);
  PrepareOptions prepare;
  prepare.inputs = {folder.file("kjv.txt")};
  prepare.output = folder.file("kjv");
  prepare.document_separator = "\\f";
  const PrepareReport prepared = prepare_data(prepare);
  EXPECT_EQ(prepared.meta.documents, 1189);
  EXPECT_EQ(prepared.meta.text_characters, 4137850);
  EXPECT_EQ(prepared.meta.tokens, 4137850 + 1189);

  DatasetInspectOptions inspect;
  inspect.prefix = prepare.output;
  inspect.split = "90,10,0";
  inspect.dump_split = "valid";
  inspect.dump_path = folder.file("held.txt");
  const SplitText held = inspect_data(inspect).splits[1].text;
  EXPECT_EQ(held.documents, 119);
  const std::string text = read_file(inspect.dump_path);
  EXPECT_EQ(static_cast<std::int64_t>(text.size()), held.characters);
  EXPECT_EQ(text, read_file(folder.file("heldout.txt")));  // what the compressors get in train.sh
  const std::string last = "The grace of our Lord Jesus Christ be with you all. Amen.\n";
  EXPECT_EQ(text.substr(text.size() - last.size()), last);

  DataOptions options;
  options.data_path = {prepare.output};
  options.split = "90,10,0";
  options.vocab_size = 257;
  options.seq_length = 1024;
  const auto evaluation = make_evaluation_sources(options, Split::Valid, 16384);
  EXPECT_EQ(evaluation[0].source->num_predictions(), held.characters + held.documents);

  const std::string lines = output_of("'" + scripts + "compressors.sh' '" + inspect.dump_path + "'", &status);
  ASSERT_EQ(status, 0);
  double gzip = 0, bzip2 = 0;
  ASSERT_EQ(std::sscanf(lines.c_str(), "gzip -9 %lf bits per character\nbzip2 %lf bits per character\n", &gzip, &bzip2), 2)
      << lines;
  EXPECT_NEAR(gzip, 2.554, 0.01);
  EXPECT_NEAR(bzip2, 1.962, 0.01);
}

}  // namespace
}  // namespace deltron
