// A folder of its own for each test, removed at its end.
#pragma once

#include <string>

#include <stdlib.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/file.h"

namespace deltron {

class TempFolder {
 public:
  TempFolder() {
    // Memory, where there is such a file system: these tests sync thousands of times, and what they test is the order.
    std::string pattern = (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + std::string("/deltron_checkpoint_test_XXXXXX");
    DELTRON_CHECK(mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  ~TempFolder() { remove_tree(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return join_path(path_, name); }

 private:
  std::string path_;
};

// EXPECT_ERROR(statement, code, text...): the error has this code and its message holds every text.
template <class F, class... Texts>
std::string error_mismatch(const F& statement, ErrorCode code, const Texts&... texts) {
  try {
    statement();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (error.code() != code) return "wrong code: " + message;
    std::string missing;
    const auto look = [&](const std::string& text) {
      if (message.find(text) == std::string::npos) missing += "'" + text + "' is not in: " + message + "\n";
    };
    (look(texts), ...);
    return missing;
  }
  return "nothing was thrown";
}
#define EXPECT_ERROR(statement, ...) EXPECT_EQ(::deltron::error_mismatch([&] { statement; }, __VA_ARGS__), "")

}  // namespace deltron
