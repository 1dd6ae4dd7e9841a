// Blocks of a logical tensor: the part that one rank holds, cut along any dimensions. Integer code and copies between host arrays; knows
// nothing of files or ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/checkpoint/host_array.h"

namespace deltron {

struct Block {
  std::vector<std::int64_t> offset, shape;  // one entry a dimension of the whole tensor
};

Block whole_block(const std::vector<std::int64_t>& shape);
bool is_whole(const Block& block, const std::vector<std::int64_t>& shape);
// Under which name a block stands in a file: NAME for the whole tensor, else "NAME@row,column".
std::string block_name(const std::string& name, const Block& block, const std::vector<std::int64_t>& shape);

// Empty if the blocks cover a tensor of this shape exactly once, else what is wrong: "[0,4)x[0,2) reaches beyond [3,2]", "a hole", "overlap".
std::string why_not_tiling(const std::vector<std::int64_t>& shape, const std::vector<Block>& blocks);

// Copies what `from` (a block's elements, row-major) and `to` have in common; both are blocks of one tensor. Returns the elements copied.
std::int64_t copy_common(const Block& from, const std::uint8_t* from_data, const Block& to, std::uint8_t* to_data, std::int64_t element_bytes);

}  // namespace deltron
