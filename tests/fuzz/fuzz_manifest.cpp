// libFuzzer entry of the manifest parser. The bytes are the text behind the hash line, and the right hash is put in front, since
// the fuzzer would hardly find it; the raw bytes are parsed as well.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/checkpoint/manifest.h"

namespace {

void parse(std::string_view text) {
  try {
    deltron::Manifest manifest = deltron::parse_manifest(text, "input");
    // What was accepted can be written and read again.
    const std::string again = deltron::compose_manifest(manifest);
    if (deltron::parse_manifest(again, "again").tensors.size() != manifest.tensors.size()) std::abort();
  } catch (const deltron::Error& error) {
    if (error.code() == deltron::ErrorCode::InternalFault) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view raw(reinterpret_cast<const char*>(data), size);
  parse(raw);
  parse("{\"manifest_hash\": \"" + deltron::hash_text(deltron::hash64(data, size)) + "\",\n" + std::string(raw));
  return 0;
}
