// Calls one function of an installed library and prints the version that its headers state.
#include <cstdio>

#include "src/base/human.h"
#include "src/base/version.h"

int main() {
  std::printf("deltron %s: %s\n", DELTRON_VERSION, deltron::human_bytes(1024).c_str());
  return 0;
}
