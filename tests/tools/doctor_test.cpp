// `deltron doctor`: what it reports fits this machine, and its last line is a verdict.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "src/base/build_options.h"
#include "src/tensor/cuda_device.h"
#include "tests/tools/run_cli.h"

namespace deltron::tools {
namespace {

using deltron::testing::CliResult;
using deltron::testing::run_cli;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Doctor, the_last_line_is_ready_or_the_one_thing_to_mend) {
  const CliResult result = run_cli({"doctor", "--fast"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string text = result.out.substr(0, result.out.size() - 1);
  const std::string last = text.substr(text.rfind('\n') + 1);
  EXPECT_THAT(last, StartsWith("ready: training.device cpu"));
  const CudaStatus cuda = cuda_status();
  EXPECT_EQ(cuda.built, DELTRON_HAVE_CUDA == 1);
  if (!cuda.usable) {
    EXPECT_THAT(last, HasSubstr(cuda.problem));
    EXPECT_THAT(last, HasSubstr(cuda.fix));
  }
}

TEST(Doctor, json_holds_measurements_and_names_every_gpu) {
  const CliResult result = run_cli({"doctor", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(result.out);
  EXPECT_THAT(report.at("cpu_copy").get<std::string>(), HasSubstr("/s"));
  EXPECT_THAT(report.at("cpu_product_fp32").get<std::string>(), HasSubstr("FLOP/s"));
  EXPECT_EQ(report.contains("gpus") ? report.at("gpus").size() : 0, cuda_status().devices.size());
  EXPECT_GT(report.at("cores").get<int>(), 0);
}

}  // namespace
}  // namespace deltron::tools
