// libFuzzer entry of the safetensors header parser: any bytes give a header that tiles them, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "src/base/error.h"
#include "src/checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const deltron::SafetensorsHeader header = deltron::parse_safetensors_header(data, size, "input");
    std::uint64_t end = 0;
    for (const deltron::SafetensorsEntry& entry : header.entries) {
      if (entry.begin != end || entry.end < entry.begin) std::abort();
      end = entry.end;
    }
    if (header.data_offset + end != size) std::abort();
  } catch (const deltron::Error& error) {
    if (error.code() == deltron::ErrorCode::InternalFault) std::abort();
  }
  return 0;
}
