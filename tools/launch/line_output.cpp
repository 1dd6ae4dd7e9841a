// See line_output.h.
#include "tools/launch/line_output.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <unistd.h>

namespace deltron::tools {

void OutputQueue::add(int descriptor, std::string bytes) {
  if (bytes.empty() || lost_[descriptor]) return;
  bytes_ += bytes.size();
  pieces_.push_back({descriptor, std::move(bytes)});
}

bool OutputQueue::write_some() {
  const Piece& piece = pieces_.front();
  const std::size_t size = std::min<std::size_t>(piece.bytes.size() - written_, PIPE_BUF);
  const ssize_t done = write(piece.descriptor, piece.bytes.data() + written_, size);
  if (done < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (done < 0) {
    const int descriptor = piece.descriptor;
    lost_[descriptor] = true;
    written_ = 0;
    pieces_.erase(std::remove_if(pieces_.begin(), pieces_.end(), [&](const Piece& each) { return each.descriptor == descriptor; }), pieces_.end());
    bytes_ = 0;
    for (const Piece& each : pieces_) bytes_ += each.bytes.size();
    return false;
  }
  written_ += static_cast<std::size_t>(done);
  if (written_ == piece.bytes.size()) {
    bytes_ -= piece.bytes.size();
    written_ = 0;
    pieces_.pop_front();
  }
  return true;
}

void LastLines::add(std::string_view line) {
  lines_.push_back(line.size() <= kWidth ? std::string(line) : std::string(line.substr(0, kWidth)) + " ...");
  if (lines_.size() > kLines) lines_.pop_front();
}

void LineCutter::pass(std::string_view line, std::string& ready, const char* end) {
  last_.add(line);
  ready.append(prefix_).append(line).append(end);
}

void LineCutter::add(std::string_view bytes) {
  std::string ready;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      part_.append(bytes);
      break;
    }
    if (part_.empty()) {
      pass(bytes.substr(0, end), ready, "\n");
    } else {
      part_.append(bytes.substr(0, end));
      pass(part_, ready, "\n");
      part_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
  if (part_.size() > kLongest) {
    pass(part_, ready, "\n");
    part_.clear();
  }
  queue_.add(descriptor_, std::move(ready));
}

void LineCutter::finish() {
  if (part_.empty()) return;
  std::string ready;
  pass(part_, ready, prefix_.empty() ? "" : "\n");  // a single rank's bytes pass as they are
  part_.clear();
  queue_.add(descriptor_, std::move(ready));
}

}  // namespace deltron::tools
