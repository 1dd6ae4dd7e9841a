// See tensorboard.h.
#include "src/train/tensorboard.h"

#include <array>
#include <chrono>
#include <cstring>

#include <unistd.h>

namespace deltron::tensorboard {
namespace {

std::array<std::uint32_t, 256> make_table() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78u;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? kPolynomial : 0u);
    table[i] = value;
  }
  return table;
}

template <class T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

// Protobuf wire types.
constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void append_key(std::string& out, std::uint64_t field, std::uint64_t type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

void append_float(std::string& out, std::uint64_t field, double value) {
  const auto narrow = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof(bits));
  append_key(out, field, kFixed32);
  append_little_endian(out, bits);
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. Summary: 1 value {1 tag, 2 simple_value}.
std::string event_head(double wall_time) {
  std::string event;
  std::uint64_t bits;
  std::memcpy(&bits, &wall_time, sizeof(bits));
  append_key(event, 1, kFixed64);
  append_little_endian(event, bits);
  return event;
}

void append_step(std::string& event, std::int64_t step) {
  append_key(event, 2, kVarint);
  append_varint(event, static_cast<std::uint64_t>(step));
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = make_table();
  std::uint32_t value = 0xffffffffu;
  for (char c : bytes) value = (value >> 8) ^ table[(value ^ static_cast<unsigned char>(c)) & 0xffu];
  return ~value;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t value = crc32c(bytes);
  return ((value >> 15) | (value << 17)) + 0xA282EAD8u;
}

std::string record(std::string_view payload) {
  std::string out;
  append_little_endian(out, static_cast<std::uint64_t>(payload.size()));
  append_little_endian(out, masked_crc32c(out));
  out += payload;
  append_little_endian(out, masked_crc32c(payload));
  return out;
}

std::string version_event(double wall_time) {
  std::string event = event_head(wall_time);
  append_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalars_event(double wall_time, std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    append_bytes(entry, 1, tag);
    append_float(entry, 2, value);
    append_bytes(summary, 1, entry);
  }
  std::string event = event_head(wall_time);
  append_step(event, step);
  append_bytes(event, 5, summary);
  return event;
}

std::string restart_event(double wall_time, std::int64_t step) {
  constexpr std::uint64_t kStart = 1;
  std::string log;
  append_key(log, 1, kVarint);
  append_varint(log, kStart);
  std::string event = event_head(wall_time);
  append_step(event, step);
  append_bytes(event, 7, log);
  return event;
}

EventFile::EventFile(const std::string& folder, std::int64_t step) {
  make_directories(folder);
  std::string seconds = std::to_string(static_cast<std::int64_t>(now()));
  seconds.insert(0, seconds.size() < 10 ? 10 - seconds.size() : 0, '0');
  for (int n = 0; path_.empty() || file_exists(path_); ++n) {
    path_ = join_path(folder, "events.out.tfevents." + seconds + "." + host_name() + "." + std::to_string(getpid()) + "." + std::to_string(n));
  }
  writer_ = std::make_unique<FileWriter>(path_, true);
  append(version_event(now()));
  if (step > 0) append(restart_event(now(), step + 1));
}

void EventFile::write(std::int64_t step, const Scalars& scalars) { append(scalars_event(now(), step, scalars)); }

void EventFile::append(const std::string& event) {
  writer_->write(record(event));
  writer_->flush();
}

}  // namespace deltron::tensorboard
