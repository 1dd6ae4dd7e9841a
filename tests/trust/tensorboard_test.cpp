// TensorBoard files: the published vectors bit by bit, and what a run writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "src/train/tensorboard.h"
#include "tests/trust/tiny_run.h"

namespace deltron {
namespace {

using testing::Folder;

std::string hex(std::string_view bytes) {
  std::string text;
  for (unsigned char c : bytes) {
    text += "0123456789abcdef"[c >> 4];
    text += "0123456789abcdef"[c & 15];
  }
  return text;
}

TEST(Tensorboard, checksums_are_those_of_the_format) {
  EXPECT_EQ(tensorboard::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(tensorboard::masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(tensorboard::masked_crc32c(std::string("\x18\0\0\0\0\0\0\0", 8)), 0x224b7fa3u);
  EXPECT_EQ(tensorboard::masked_crc32c(""), 0xa282ead8u);
}

TEST(Tensorboard, records_are_the_published_bytes) {
  EXPECT_EQ(hex(tensorboard::record(tensorboard::version_event(1.0))),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  EXPECT_EQ(hex(tensorboard::record(tensorboard::scalars_event(2.0, 10, {{"loss", 2.5}}))),
            "1a00000000000000129bd82d090000000000000040100a2a0d0a0b0a046c6f7373" "1500002040097a8f44");
  EXPECT_EQ(hex(tensorboard::restart_event(1.0, 300)), "09000000000000f03f10ac023a020801");
}

// A reader of its own, from the format's description alone: nothing of src/train/tensorboard.cpp is used. Frames are
// u64 length, masked CRC-32C of those 8 bytes, payload, masked CRC-32C of the payload; fields are walked by the rules of protobuf.
std::uint32_t plain_masked_crc(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;  // Castagnoli, reflected
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

struct ReadEvent {
  std::int64_t step = 0;
  bool restart = false;
  std::string version;
  std::map<std::string, float> scalars;
};

std::uint64_t varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

template <class T>
T fixed_width(std::string_view& in) {
  T value;
  std::memcpy(&value, in.data(), sizeof(T));
  in.remove_prefix(sizeof(T));
  return value;
}

std::string_view length_delimited(std::string_view& in) {
  const std::uint64_t size = varint(in);
  const std::string_view piece = in.substr(0, size);
  in.remove_prefix(size);
  return piece;
}

ReadEvent parse_event(std::string_view in) {
  ReadEvent event;
  while (!in.empty()) {
    switch (varint(in)) {
      case (1 << 3 | 1): fixed_width<double>(in); break;
      case (2 << 3 | 0): event.step = static_cast<std::int64_t>(varint(in)); break;
      case (3 << 3 | 2): event.version = std::string(length_delimited(in)); break;
      case (7 << 3 | 2): event.restart = length_delimited(in) == std::string_view("\x08\x01"); break;
      case (5 << 3 | 2): {
        std::string_view summary = length_delimited(in);
        while (!summary.empty()) {
          EXPECT_EQ(varint(summary), (1u << 3 | 2u));
          std::string_view value = length_delimited(summary);
          EXPECT_EQ(varint(value), (1u << 3 | 2u));
          const std::string tag(length_delimited(value));
          EXPECT_EQ(varint(value), (2u << 3 | 5u));
          event.scalars[tag] = fixed_width<float>(value);
        }
        break;
      }
      default: ADD_FAILURE() << "unknown field"; return event;
    }
  }
  return event;
}

std::vector<ReadEvent> read_events(const std::string& path) {
  const std::string bytes = read_file(path);
  std::string_view in = bytes;
  std::vector<ReadEvent> events;
  while (!in.empty()) {
    if (in.size() < 16) {
      ADD_FAILURE() << "the file ends inside a frame";
      return events;
    }
    const std::string_view length_bytes = in.substr(0, 8);
    const auto length = fixed_width<std::uint64_t>(in);
    EXPECT_EQ(fixed_width<std::uint32_t>(in), plain_masked_crc(length_bytes));
    if (in.size() < length + 4) {
      ADD_FAILURE() << "the file ends inside a record";
      return events;
    }
    const std::string_view payload = in.substr(0, length);
    in.remove_prefix(length);
    EXPECT_EQ(fixed_width<std::uint32_t>(in), plain_masked_crc(payload));
    events.push_back(parse_event(payload));
  }
  return events;
}

TEST(Tensorboard, the_reader_of_these_tests_reads_the_published_bytes_and_finds_a_flipped_one) {
  const Folder folder("tensorboard_reader");
  const std::string published =
      "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"
      "1a00000000000000129bd82d090000000000000040100a2a0d0a0b0a046c6f737315000020400" "97a8f44";
  std::string bytes;
  for (std::size_t i = 0; i < published.size(); i += 2) bytes += static_cast<char>(std::stoi(published.substr(i, 2), nullptr, 16));
  write_file_atomically(folder / "published", bytes);
  const std::vector<ReadEvent> events = read_events(folder / "published");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].step, 10);
  EXPECT_EQ(events[1].scalars.at("loss"), 2.5f);
  EXPECT_NE(plain_masked_crc(bytes.substr(12, 24)), plain_masked_crc(bytes.substr(12, 23) + "x"));
}

TEST(Tensorboard, a_run_writes_megatrons_tags_and_every_validation_set) {
  const Folder folder("tensorboard");
  RunConfig config = testing::tiny_config(folder);
  config.training.train_iters = 10;
  config.training.eval_interval = 5;
  config.training.eval_iters = 2;
  config.logging.tensorboard = config.logging.log_per_layer_grad_norm = true;
  train(config, {});
  const std::string events_folder = join_path(config.checkpoint.save, "tensorboard");
  ASSERT_EQ(list_directory(events_folder).size(), 1u);
  const std::string name = list_directory(events_folder)[0];
  EXPECT_THAT(name, ::testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..*\\.[0-9]+\\.0"));
  const std::vector<ReadEvent> events = read_events(join_path(events_folder, name));
  EXPECT_EQ(events.at(0).version, "brain.Event:2");
  std::map<std::string, std::map<std::int64_t, float>> series;
  for (const ReadEvent& event : events) {
    EXPECT_FALSE(event.restart);
    for (const auto& [tag, value] : event.scalars) series[tag][event.step] = value;
  }
  const std::vector<nlohmann::json> lines = testing::metrics_lines(config.checkpoint.save, "train");
  for (const nlohmann::json& line : lines) {
    const std::int64_t step = line.at("step");
    EXPECT_EQ(series.at("lm loss").at(step), static_cast<float>(line.at("loss").get<double>()));
    EXPECT_EQ(series.at("lm loss vs samples").at(line.at("samples")), static_cast<float>(line.at("loss").get<double>()));
    EXPECT_EQ(series.at("learning-rate").at(step), static_cast<float>(line.at("lr").get<double>()));
    EXPECT_EQ(series.at("grad-norm").at(step), static_cast<float>(line.at("grad_norm").get<double>()));
    double squares = 0;
    for (const auto& [layer, norm] : line.at("layer_grad_norms").items()) {
      EXPECT_EQ(series.at("grad-norm/" + layer).at(step), static_cast<float>(norm.get<double>()));
      squares += norm.get<double>() * norm.get<double>();
    }
    EXPECT_EQ(line.at("layer_grad_norms").size(), 4u);  // embedding, two layers, final norm
    EXPECT_NEAR(std::sqrt(squares), line.at("grad_norm").get<double>(), 1e-9);
  }
  for (const char* tag : {"batch-size", "iteration-time", "throughput", "world-size", "mem-allocated-bytes", "mem-max-allocated-bytes"}) {
    EXPECT_EQ(series.count(tag), 1u) << tag;
  }
  const std::vector<nlohmann::json> evaluations = testing::metrics_lines(config.checkpoint.save, "eval");
  ASSERT_EQ(evaluations.size(), 4u);  // two sets at two steps
  for (const nlohmann::json& line : evaluations) {
    const std::string tag = "lm loss validation (" + line.at("name").get<std::string>() + ")";
    EXPECT_EQ(series.at(tag).at(line.at("step")), static_cast<float>(line.at("val_loss").get<double>()));
    EXPECT_EQ(series.at(tag + " ppl").count(line.at("step")), 1u);
  }
}

TEST(Tensorboard, a_resumed_run_opens_a_new_file_that_supersedes_later_steps) {
  const Folder folder("tensorboard_resume");
  RunConfig config = testing::tiny_config(folder);
  config.logging.tensorboard = true;
  config.training.exit_interval = 10;
  EXPECT_TRUE(train(config, {}).stopped);
  EXPECT_FALSE(train(config, {}).stopped);
  const std::string events_folder = join_path(config.checkpoint.save, "tensorboard");
  const std::vector<std::string> names = list_directory(events_folder);
  ASSERT_EQ(names.size(), 2u);
  const std::vector<ReadEvent> second = read_events(join_path(events_folder, names[1]));
  EXPECT_TRUE(second.at(1).restart);
  EXPECT_EQ(second.at(1).step, 11);
}

}  // namespace
}  // namespace deltron
