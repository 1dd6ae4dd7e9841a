// What causal convolutions over packed documents share: how far each token's taps reach. Knows no arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/views.h"
#include "src/base/check.h"

namespace deltron::kernels::cpu {

inline constexpr std::int64_t kConvBlock = 128;  // tokens
inline constexpr std::int64_t kConvMaxKernel = 16;
inline constexpr std::int64_t kConvRows = kConvBlock + kConvMaxKernel;

// How many tokens before and after each token of [begin, end) belong to its document, capped at kernel - 1.
struct ConvReach {
  std::int64_t before[kConvRows];
  std::int64_t after[kConvRows];

  void fill(const Documents& documents, std::int64_t begin, std::int64_t end, std::int64_t kernel) {
    const std::int64_t* last = documents.cu_seqlens + documents.count;
    const std::int64_t* next = std::upper_bound(documents.cu_seqlens, last, begin);  // first offset beyond the token
    for (std::int64_t t = begin; t < end; ++t) {
      while (next < last && *next <= t) ++next;
      before[t - begin] = std::min(kernel - 1, t - next[-1]);
      after[t - begin] = std::min(kernel - 1, *next - 1 - t);
    }
  }
};

template <class Args>
void check_conv(const Args& args, const char* name) {
  DELTRON_CHECK(args.kernel >= 1 && args.kernel <= kConvMaxKernel, name, " takes kernels of 1 to ", kConvMaxKernel, ", not ", args.kernel);
  const Documents& documents = args.documents;
  DELTRON_CHECK(args.tokens == 0 || documents.count > 0, name, " needs documents");
  DELTRON_CHECK(args.tokens == 0 || (documents.cu_seqlens[0] == 0 && documents.cu_seqlens[documents.count] == args.tokens),
                "cu_seqlens must run from 0 to the number of tokens, ", args.tokens);
}

}  // namespace deltron::kernels::cpu
