// See check.h.
#include "src/base/check.h"

#include <cstring>

namespace deltron::detail {

void check_failed(const char* file, int line, const std::string& what) {
  const char* inside = std::strstr(file, "src/");  // paths in messages are relative to the repository
  if (inside == nullptr) inside = file;
  throw Error(ErrorCode::InternalFault, ErrorText{what, std::string(inside) + ":" + std::to_string(line), "", "", ""});
}

}  // namespace deltron::detail
