// Turns the heap of a GPU test binary into memory that the device sees (pinned_heap.cpp).
#pragma once

#include <cstddef>

namespace deltron::test {

// False where there is no device, or no memory to pin.
bool open_pinned_heap();
// Blocks of the heap whose surroundings somebody wrote to.
std::size_t written_guards();

}  // namespace deltron::test
