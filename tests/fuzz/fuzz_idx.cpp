// libFuzzer entry of the Megatron .idx reader: any index over a .bin of 64 bytes is refused or can be read to its last token.
// The first byte chooses the size of the .bin.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "src/base/error.h"
#include "src/data/indexed_dataset.h"
#include "tests/fuzz/fuzz_input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::string prefix = deltron::fuzz::input_path("");
  std::uint8_t tokens[64] = {};
  for (std::size_t i = 0; i < sizeof(tokens); ++i) tokens[i] = static_cast<std::uint8_t>(i);
  deltron::fuzz::write_input(prefix + ".idx", data + 1, size - 1);
  deltron::fuzz::write_input(prefix + ".bin", tokens, data[0] % (sizeof(tokens) + 1));
  try {
    const deltron::IndexedDataset dataset(prefix);
    std::int64_t total = 0;
    for (std::int64_t sequence = 0; sequence < dataset.num_sequences(); ++sequence) {
      total += dataset.length(sequence);
      if (static_cast<std::int64_t>(dataset.read_all(sequence).size()) != dataset.length(sequence)) std::abort();
    }
    if (total != dataset.num_tokens()) std::abort();
    for (std::int64_t i = 0; i <= dataset.num_documents(); ++i) {
      if (dataset.document_bound(i) < 0 || dataset.document_bound(i) > dataset.num_sequences()) std::abort();
    }
    dataset.scan_token_range();
  } catch (const deltron::Error& error) {
    if (error.code() == deltron::ErrorCode::InternalFault) std::abort();
  }
  return 0;
}
