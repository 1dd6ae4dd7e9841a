// One representative rank of a group on meta: no data moves, what would be moved is counted (Communicator::totals).
#pragma once

#include <memory>
#include <string>

#include "distributed/communicator.h"

namespace deltron {

// It cannot be split, since the others' colours are unknown: set_meta_parallel_state makes every group of a grid with its size.
std::shared_ptr<Communicator> make_meta_group(int rank, int size, const std::string& label = "world");

}  // namespace deltron
