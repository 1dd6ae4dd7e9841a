// 64-bit content hash (xxHash's XXH3) of memory, as 16 hex digits where it is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace deltron {

std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed = 0);
std::string hash_text(std::uint64_t hash);

// The same hash over data that arrives in pieces.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  StreamingHash(const StreamingHash&) = delete;
  StreamingHash& operator=(const StreamingHash&) = delete;
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  void* state_;
};

}  // namespace deltron
