// Splits "90,10,0" into ranges of document numbers, with Megatron's rounding.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace deltron {

enum class Split { Train, Valid, Test };

const char* split_name(Split split);
Split parse_split_name(const std::string& name);  // train | valid | test

// Weights of train, valid, test; missing ones are 0. Sum to 1.
std::array<double, 3> parse_split(const std::string& text);

struct DocumentRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
};

// [round(a*documents), round(b*documents)), half to even.
DocumentRange split_range(const std::string& split_text, Split split, std::int64_t documents);

}  // namespace deltron
