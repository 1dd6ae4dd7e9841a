// The server half of tcp_store.h: one thread, all connections in one poll(). A connection that sends anything but our messages is closed.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <thread>

#include "distributed/tcp_store.h"
#include "distributed/tcp_store_protocol.h"
#include "src/base/error.h"

namespace deltron {

class TcpStoreServer::Loop {
 public:
  Loop(int port, const std::string& job_id, int world_size) : job_id_(job_id), world_size_(world_size) {
    std::string problem;
    listener_ = wire::listen_on(port, problem);
    if (!listener_.open()) {
      throw Error(ErrorCode::CommunicationFailed,
                  ErrorText{"rank 0 cannot listen for the other ranks", "port " + std::to_string(port), problem, "the port is free on rank 0's machine",
                            "choose another one: --master-port of the launcher, or DELTRON_MASTER_PORT"});
    }
    ranks_.resize(static_cast<std::size_t>(world_size));
    if (pipe(wake_.data()) != 0) wake_ = {-1, -1};
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    stop_ = true;
    const char byte = 0;
    if (wake_[1] >= 0 && write(wake_[1], &byte, 1) < 0) stop_ = true;
    thread_.join();
    for (int end : wake_) {
      if (end >= 0) ::close(end);
    }
  }
  int port() const { return wire::port_of(listener_); }
  void wait_for_goodbyes(double seconds, int own) {
    std::unique_lock<std::mutex> lock(ended_mutex_);
    ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
      int there = 0;
      for (int rank = 0; rank < world_size_; ++rank) there += rank != own && !ranks_[static_cast<std::size_t>(rank)].ended ? 1 : 0;
      return there == 0;
    });
  }

 private:
  struct Peer {
    wire::Socket socket;
    int rank = -1;           // once it has said hello
    std::string received;    // a message that is still coming
  };
  struct Rank {
    bool here = false, left = false;
    bool ended = false;  // one way or the other; guarded by ended_mutex_
    std::string last_word;
  };

  void run() {
    while (!stop_) {
      std::vector<pollfd> entries = {{listener_.descriptor(), POLLIN, 0}, {wake_[0], POLLIN, 0}};
      for (const auto& [descriptor, peer] : peers_) entries.push_back({descriptor, POLLIN, 0});
      if (::poll(entries.data(), entries.size(), 1000) <= 0) continue;
      if (entries[0].revents != 0) admit();
      for (std::size_t i = 2; i < entries.size(); ++i) {
        if (entries[i].revents != 0) read_from(entries[i].fd);
      }
    }
  }

  void admit() {
    wire::Socket socket(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.open()) return;
    const int descriptor = socket.descriptor();
    peers_[descriptor].socket = std::move(socket);
  }

  void read_from(int descriptor) {
    Peer& peer = peers_.at(descriptor);
    std::array<char, 65536> buffer;
    const ssize_t count = ::recv(descriptor, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return drop(descriptor);
    peer.received.append(buffer.data(), static_cast<std::size_t>(count));
    for (;;) {
      std::uint32_t size = 0;
      if (peer.received.size() < sizeof(size)) return;
      std::memcpy(&size, peer.received.data(), sizeof(size));
      if (size > wire::kMostBytes) return drop(descriptor);
      if (peer.received.size() < sizeof(size) + size) return;
      const std::optional<std::vector<std::string>> request = wire::unpack(peer.received.substr(sizeof(size), size));
      peer.received.erase(0, sizeof(size) + size);
      if (!request || request->empty()) return drop(descriptor);
      const std::vector<std::string> answer = peer.rank < 0 ? greet(peer, *request) : serve(peer, *request);
      // A peer that does not read its answer holds the others up no longer than this.
      if (!peer.socket.send(wire::pack(answer), 2.0) || (peer.rank < 0)) return drop(descriptor);
    }
  }

  void drop(int descriptor) {
    const int rank = peers_.at(descriptor).rank;
    peers_.erase(descriptor);
    if (rank < 0) return;
    Rank& entry = ranks_[static_cast<std::size_t>(rank)];
    entry.here = false;
    if (!entry.left) gone_.push_back(rank);
    {
      const std::lock_guard<std::mutex> lock(ended_mutex_);
      entry.ended = true;
    }
    ended_.notify_all();
  }

  std::vector<std::string> greet(Peer& peer, const std::vector<std::string>& hello) {
    namespace p = store_protocol;
    if (hello.size() != 6 || hello[0] != p::kHello || hello[1] != p::kMagic) return {p::kRefused, "no rank of Deltron"};
    if (hello[2] != p::kVersion) return {p::kRefused, "another version of Deltron: protocol " + hello[2] + ", rank 0 has " + p::kVersion};
    if (hello[3] != job_id_) return {p::kRefused, "another job: '" + hello[3] + "', rank 0 is of '" + job_id_ + "'"};
    if (hello[5] != std::to_string(world_size_)) {
      return {p::kRefused, "another world size: " + hello[5] + ", rank 0 waits for " + std::to_string(world_size_)};
    }
    int rank = -1;
    for (int candidate = 0; candidate < world_size_; ++candidate) {
      if (hello[4] == std::to_string(candidate)) rank = candidate;
    }
    if (rank < 0) return {p::kRefused, "rank " + hello[4] + " of " + hello[5]};
    Rank& entry = ranks_[static_cast<std::size_t>(rank)];
    if (entry.here || entry.left) return {p::kRefused, "rank " + hello[4] + " is there already"};
    entry.here = true;
    peer.rank = rank;
    return {p::kFine};
  }

  std::vector<std::string> serve(const Peer& peer, const std::vector<std::string>& request) {
    namespace p = store_protocol;
    const std::string& what = request[0];
    Rank& entry = ranks_[static_cast<std::size_t>(peer.rank)];
    if (what == p::kSet && request.size() == 3) {
      notes_[request[1]] = request[2];
      return {p::kFine};
    }
    if (what == p::kGet && request.size() == 2) {
      const auto found = notes_.find(request[1]);
      return found == notes_.end() ? std::vector<std::string>{p::kAbsent} : std::vector<std::string>{p::kFine, found->second};
    }
    if (what == p::kFault && request.size() == 2) {
      if (fault_.empty()) fault_ = request[1];
      return {p::kFine};
    }
    if (what == p::kGoodbye) {
      entry.left = true;
      return {p::kFine};
    }
    if (what == p::kBeat && request.size() == 3) {
      entry.last_word = request[1];
      std::vector<std::string> news = {p::kFine, fault_, std::to_string(gone_.size())};
      for (int rank : gone_) {
        news.push_back(std::to_string(rank));
        news.push_back(ranks_[static_cast<std::size_t>(rank)].last_word);
      }
      if (request[2] == p::kAllWords) {
        for (const Rank& other : ranks_) news.push_back(other.last_word);
      }
      return news;
    }
    return {p::kRefused, "unknown request"};
  }

  std::string job_id_;
  int world_size_;
  std::mutex ended_mutex_;
  std::condition_variable ended_;
  wire::Socket listener_;
  std::array<int, 2> wake_{-1, -1};
  std::atomic<bool> stop_{false};
  std::map<int, Peer> peers_;
  std::vector<Rank> ranks_;
  std::vector<int> gone_;
  std::string fault_;
  std::map<std::string, std::string> notes_;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(int port, const std::string& job_id, int world_size) : loop_(std::make_unique<Loop>(port, job_id, world_size)) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return loop_->port(); }
void TcpStoreServer::wait_for_goodbyes(double seconds, int own) const { loop_->wait_for_goodbyes(seconds, own); }

}  // namespace deltron
