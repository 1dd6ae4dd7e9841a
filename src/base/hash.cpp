// See hash.h.
#include "src/base/hash.h"

#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deltron {

std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

StreamingHash::StreamingHash() : state_(XXH3_createState()) { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }
StreamingHash::~StreamingHash() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void StreamingHash::update(const void* data, std::size_t bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data, bytes);
}
std::uint64_t StreamingHash::digest() const { return XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_)); }

}  // namespace deltron
