// libFuzzer entry of the JSONL reader: any bytes give documents, counted right, or an Error with a place.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/base/error.h"
#include "src/data/text_reader.h"
#include "tests/fuzz/fuzz_input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string path = deltron::fuzz::input_path(".jsonl");
  deltron::fuzz::write_input(path, data, size);
  std::int64_t seen = 0, before = 0;
  deltron::TextStats stats;
  try {
    deltron::read_jsonl_documents(path, "text", stats, [&](std::string_view text, std::int64_t line) {
      if (text.empty() || line <= before) std::abort();
      before = line;
      ++seen;
    });
    if (seen != stats.documents) std::abort();
  } catch (const deltron::Error& error) {
    if (error.code() == deltron::ErrorCode::InternalFault) std::abort();
    if (error.code() == deltron::ErrorCode::TextInvalid && error.text().where.find(".jsonl:") == std::string::npos) std::abort();
  }
  return 0;
}
