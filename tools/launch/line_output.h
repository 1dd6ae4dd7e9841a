// The ranks' output on its way to ours: cut into whole lines, marked with the rank, written in the order of arrival.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace deltron::tools {

// Bytes for our standard output and error, one queue for both, so that two streams into one file cannot cut each other's lines.
class OutputQueue {
 public:
  void add(int descriptor, std::string bytes);
  bool empty() const { return pieces_.empty(); }
  bool full() const { return bytes_ >= kEnough; }  // read no more from the ranks until some of it is written
  int next_descriptor() const { return pieces_.front().descriptor; }
  // Writes a bit to next_descriptor(), which must be ready: what a ready pipe surely takes, so that this never blocks for long.
  // False: nobody reads that stream any more; what was and will be queued for it is dropped.
  bool write_some();

 private:
  static constexpr std::size_t kEnough = std::size_t{1} << 20;
  struct Piece {
    int descriptor;
    std::string bytes;
  };
  std::deque<Piece> pieces_;
  std::size_t written_ = 0;  // of the first piece
  std::size_t bytes_ = 0;
  bool lost_[3] = {};        // by descriptor
};

// The last lines of one rank, both streams, cut to a width that a terminal can bear.
class LastLines {
 public:
  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  static constexpr std::size_t kLines = 20, kWidth = 2000;
  std::deque<std::string> lines_;
};

// One stream of one rank.
class LineCutter {
 public:
  // `prefix` stands before each line; `descriptor` is where it goes.
  LineCutter(int descriptor, std::string prefix, LastLines& last, OutputQueue& queue)
      : descriptor_(descriptor), prefix_(std::move(prefix)), last_(last), queue_(queue) {}
  void add(std::string_view bytes);
  // The stream has ended: what came without a line end is a line too.
  void finish();

 private:
  static constexpr std::size_t kLongest = std::size_t{16} << 20;  // a longer line is cut: memory is not for a stream without line ends
  void pass(std::string_view line, std::string& ready, const char* end);

  int descriptor_;
  std::string prefix_, part_;
  LastLines& last_;
  OutputQueue& queue_;
};

}  // namespace deltron::tools
