// Sizes, times and counts as people read them, and numbers as they round-trip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltron {

std::string human_bytes(std::uint64_t bytes);    // "1.50 GiB"
std::string human_count(double count);           // "494.6 M"
std::string human_seconds(double seconds);       // "3.2 s", "4 min 10 s", "2 h 05 min"
std::string shortest(double value);              // shortest text that reads back as the same double
std::string fixed(double value, int digits);     // fixed number of decimals
std::string thousands(std::int64_t value);       // "131,072"
std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2,3]"

}  // namespace deltron
