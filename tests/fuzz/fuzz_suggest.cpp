// Did-you-mean on any two words: what it offers is always one of the known words, and the words themselves are never altered.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/base/suggest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), std::min<std::size_t>(size, 256));
  std::vector<std::string> known(1);
  for (const char c : text) {
    if (c == '\n') {
      known.emplace_back();
    } else {
      known.back() += c;
    }
  }
  const std::string word = known.back();
  known.pop_back();
  const std::vector<std::string> offered = deltron::nearest_words(word, known, 3);
  if (offered.size() > 3) std::abort();
  for (const std::string& one : offered) {
    if (std::find(known.begin(), known.end(), one) == known.end()) std::abort();
  }
  return 0;
}
