// The client half of tcp_store.h.
#include "distributed/tcp_store.h"

#include <chrono>
#include <thread>

#include "distributed/tcp_store_protocol.h"
#include "src/base/error.h"

namespace deltron {
namespace {

using Clock = std::chrono::steady_clock;
namespace p = store_protocol;
constexpr double kAnswerSeconds = 30;  // of a server that is alive

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

TcpStore::TcpStore(const std::string& address, int port, const std::string& job_id, int rank, int world_size, double deadline_seconds)
    : where_(address + ":" + std::to_string(port)), rank_(rank), world_size_(world_size) {
  const Clock::time_point start = Clock::now();
  std::string problem;
  double pause = 0.01;
  for (;;) {
    socket_ = wire::connect_to(address, port, 5, problem);
    std::string answer;
    if (socket_.open()) {
      const std::vector<std::string> hello = {p::kHello, p::kMagic, p::kVersion, job_id, std::to_string(rank), std::to_string(world_size)};
      if (socket_.send(wire::pack(hello), kAnswerSeconds) && socket_.receive(answer, kAnswerSeconds)) {
        const std::optional<std::vector<std::string>> parts = wire::unpack(answer);
        if (parts && parts->size() == 1 && parts->front() == p::kFine) return;
        if (parts && parts->size() == 2 && parts->front() == p::kRefused) {
          throw Error(ErrorCode::CommunicationFailed, ErrorText{"rank 0 refuses this rank", where_, "rank " + std::to_string(rank) + ": " + parts->at(1),
                                                                "all ranks of a job are started alike, each once",
                                                                "is a rank of an earlier job still running, or does another job use this port?"});
        }
      }
      problem = "whoever listens there is no rank of Deltron";
    }
    if (seconds_since(start) > deadline_seconds) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    pause = std::min(0.5, 1.5 * pause);
  }
  throw Error(ErrorCode::CommunicationFailed,
              ErrorText{"rank 0 does not answer", where_, problem + "; tried for " + std::to_string(static_cast<long>(deadline_seconds)) + " s",
                        "rank 0 listens there before the deadline", "did rank 0 start? is the address right, and the port open between the machines?"});
}

TcpStore::~TcpStore() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string answer;
  if (socket_.send(wire::pack({p::kGoodbye}), 1)) socket_.receive(answer, 1);
}

std::string TcpStore::own_address() const { return wire::own_address(socket_); }

void TcpStore::lost() const {
  throw Error(ErrorCode::CommunicationFailed, ErrorText{"rank 0 is gone", where_, "its process no longer answers", "rank 0 runs as long as the job", ""});
}

std::vector<std::string> TcpStore::ask(const std::vector<std::string>& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string answer;
  if (!socket_.send(wire::pack(request), kAnswerSeconds) || !socket_.receive(answer, kAnswerSeconds)) {
    socket_.close();
    lost();
  }
  const std::optional<std::vector<std::string>> parts = wire::unpack(answer);
  if (!parts || parts->empty()) lost();
  return *parts;
}

void TcpStore::set(const std::string& key, const std::string& value) { ask({p::kSet, key, value}); }

std::string TcpStore::get(const std::string& key, double timeout_seconds) {
  const Clock::time_point start = Clock::now();
  double pause = 0.001;
  for (;;) {
    const std::vector<std::string> answer = ask({p::kGet, key});
    if (answer.size() == 2 && answer[0] == p::kFine) return answer[1];
    if (seconds_since(start) > timeout_seconds) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    pause = std::min(0.05, 1.5 * pause);
  }
  std::string gone;
  for (const JobNews::Gone& entry : beat("waits for '" + key + "'").gone) gone += (gone.empty() ? "; gone: rank " : ", ") + std::to_string(entry.rank);
  throw Error(ErrorCode::CommunicationFailed,
              ErrorText{"the other ranks did not come", where_, "rank " + std::to_string(rank_) + " waited " + std::to_string(static_cast<long>(timeout_seconds)) +
                                                                    " s for '" + key + "'" + gone,
                        "all " + std::to_string(world_size_) + " ranks start within the deadline", "look at the ranks that are missing"});
}

JobNews TcpStore::beat(const std::string& last_word, bool all_words) {
  const std::vector<std::string> answer = ask({p::kBeat, last_word, all_words ? p::kAllWords : ""});
  JobNews news;
  if (answer.size() < 3) lost();
  news.fault = answer[1];
  std::size_t at = 3;
  for (std::size_t count = std::stoul(answer[2]); count > 0 && at + 1 < answer.size(); --count, at += 2) {
    news.gone.push_back({std::stoi(answer[at]), answer[at + 1]});
  }
  news.last_words.assign(answer.begin() + static_cast<std::ptrdiff_t>(at), answer.end());
  return news;
}

void TcpStore::announce_fault(const std::string& text) {
  try {
    ask({p::kFault, text});
  } catch (const Error&) {
    return;  // rank 0 is gone: the others learn that
  }
}

}  // namespace deltron
