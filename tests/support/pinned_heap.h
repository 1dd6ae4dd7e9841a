// Turns the heap of a GPU test binary into memory that the device sees (pinned_heap.cpp).
#pragma once

namespace deltron::test {

// False where there is no device, or no memory to pin.
bool open_pinned_heap();

}  // namespace deltron::test
