// Assertions for our own faults: they throw ErrorCode::InternalFault and print both values.
// User errors (config, data, files) are thrown as Error with their own code instead.
#pragma once

#include <sstream>
#include <string>

#include "src/base/error.h"

namespace deltron::detail {

[[noreturn]] void check_failed(const char* file, int line, const std::string& what);

template <class... Parts>
std::string join_parts(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace deltron::detail

// DELTRON_CHECK(condition, message parts ...)
#define DELTRON_CHECK(condition, ...)                                                   \
  do {                                                                                  \
    if (!(condition))                                                                   \
      ::deltron::detail::check_failed(__FILE__, __LINE__,                               \
                                      ::deltron::detail::join_parts("check failed: " #condition ": ", __VA_ARGS__)); \
  } while (false)

#define DELTRON_CHECK_OP(a, op, b, ...)                                                                   \
  do {                                                                                                    \
    const auto& deltron_a = (a);                                                                          \
    const auto& deltron_b = (b);                                                                          \
    if (!(deltron_a op deltron_b))                                                                        \
      ::deltron::detail::check_failed(__FILE__, __LINE__,                                                 \
                                      ::deltron::detail::join_parts("check failed: " #a " " #op " " #b " (", deltron_a, \
                                                                    " against ", deltron_b, "): ", __VA_ARGS__)); \
  } while (false)
#define DELTRON_CHECK_EQ(a, b, ...) DELTRON_CHECK_OP(a, ==, b, __VA_ARGS__)
#define DELTRON_CHECK_LE(a, b, ...) DELTRON_CHECK_OP(a, <=, b, __VA_ARGS__)
#define DELTRON_CHECK_LT(a, b, ...) DELTRON_CHECK_OP(a, <, b, __VA_ARGS__)
#define DELTRON_CHECK_GE(a, b, ...) DELTRON_CHECK_OP(a, >=, b, __VA_ARGS__)
