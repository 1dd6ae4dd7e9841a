// See host_channel.h.
#include "src/train/host_channel.h"

#include <algorithm>
#include <cstring>

namespace deltron {

HostChannel::HostChannel(std::shared_ptr<Communicator> control) : control_(std::move(control)) {
  if (!control_) return;
  ContextOptions options;
  options.threads = 1;
  options.pin_threads = false;
  ctx_ = std::make_unique<Context>(options);
}

// An exchange under way writes into `all_`.
HostChannel::~HostChannel() {
  if (control_ && all_.defined()) arrived_.wait();
}

std::vector<std::string> HostChannel::exchange(const std::string& mine) {
  if (!control_) return {mine};
  const auto ranks = static_cast<std::int64_t>(size());
  const Tensor length = make_tensor(*ctx_, {1}, DType::F64, {static_cast<double>(mine.size())}, "message length");
  const Tensor lengths = Tensor::zeros(*ctx_, {ranks}, DType::F64, "message lengths");
  control_->all_gather(*ctx_, length, lengths, "lengths of messages");
  const std::vector<double> sizes = to_doubles(*ctx_, lengths);
  // Whole words of 8 bytes, so that every back end carries them as integers.
  const auto longest = static_cast<std::int64_t>(*std::max_element(sizes.begin(), sizes.end()));
  const std::int64_t words = std::max<std::int64_t>(1, (longest + 7) / 8);
  const Tensor text = Tensor::zeros(*ctx_, {words}, DType::I64, "message"), texts = Tensor::zeros(*ctx_, {ranks * words}, DType::I64, "messages");
  if (!mine.empty()) std::memcpy(text.data(), mine.data(), mine.size());
  control_->all_gather(*ctx_, text, texts, "messages");
  std::vector<std::string> all;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    all.emplace_back(texts.data_as<const char>() + rank * words * 8, static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
  }
  return all;
}

std::string HostChannel::from_first(const std::string& mine) {
  if (!control_) return mine;
  return exchange(rank() == 0 ? mine : std::string()).front();
}

void HostChannel::begin_numbers(const std::vector<double>& mine) {
  own_ = mine;
  if (!control_) return;
  const auto count = static_cast<std::int64_t>(mine.size());
  mine_ = make_tensor(*ctx_, {count}, DType::F64, mine, "numbers of this rank");
  all_ = Tensor::zeros(*ctx_, {count * size()}, DType::F64, "numbers of all ranks");
  arrived_ = control_->all_gather_later(*ctx_, mine_, all_, "numbers between hosts");
}

std::vector<std::vector<double>> HostChannel::finish_numbers() {
  DELTRON_CHECK(!own_.empty(), "no exchange of numbers was begun");
  const std::vector<double> mine = std::move(own_);
  own_.clear();
  if (!control_) return {mine};
  control_->finish(*ctx_, arrived_);
  const std::vector<double> flat = to_doubles(*ctx_, all_);
  mine_ = all_ = Tensor();
  std::vector<std::vector<double>> all;
  for (std::size_t at = 0; at < flat.size(); at += mine.size()) {
    all.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at), flat.begin() + static_cast<std::ptrdiff_t>(at + mine.size()));
  }
  return all;
}

}  // namespace deltron
