// libFuzzer entry of the configuration loader: any text gives a configuration or faults with places, and what was accepted is written and
// read back equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/base/error.h"
#include "src/config/loader.h"
#include "src/config/schema.h"
#include "src/config/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The first line is an override, the rest the file.
  const std::string all(reinterpret_cast<const char*>(data), size);
  const std::size_t line = all.find('\n');
  std::vector<std::string> overrides;
  if (line != std::string::npos && line > 0) overrides.push_back(all.substr(0, line));
  const std::string text = line == std::string::npos ? all : all.substr(line + 1);
  const deltron::LoadedConfig loaded = deltron::read_config_text(text, "t.yaml", overrides);  // never throws
  for (const std::string& fault : loaded.faults) {
    if (fault.empty() || fault[0] != 'E') std::abort();
  }
  try {
    deltron::validate_or_throw(loaded.config, loaded.sources);
  } catch (const deltron::Error& error) {
    if (error.code() == deltron::ErrorCode::InternalFault) std::abort();
  }
  if (!loaded.faults.empty()) return 0;
  const deltron::LoadedConfig again = deltron::read_config_text(deltron::to_yaml(loaded.config), "again.yaml", {});
  if (!again.faults.empty() || !(again.config == loaded.config)) std::abort();
  return 0;
}
