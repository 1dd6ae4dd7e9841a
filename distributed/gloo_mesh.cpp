// See gloo_mesh.h. Gloo wakes who waits for a message when it has arrived, but not always when the connection breaks in the middle of one, and
// its own time-outs break every connection of the group at once. So a watching thread looks at the rank that is waited for: a receive that never
// completes (the sentinel) tells of a broken connection, and the deadline is ours.
#include "distributed/gloo_mesh.h"

#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "src/base/error.h"

namespace deltron {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kTick{50};
constexpr std::uint64_t kSentinelSlot = std::numeric_limits<std::uint64_t>::max();

milliseconds as_milliseconds(double seconds) { return milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(seconds * 1000))); }

// While it lives, a write to a connection that the other side has closed is an error on this thread, not the end of the process. Threads
// made meanwhile inherit that.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutPipeSignal() {
    if (sigismember(&before_, SIGPIPE) == 0) {
      const timespec none{};
      while (sigtimedwait(&signal_, nullptr, &none) == SIGPIPE) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;

 private:
  sigset_t signal_, before_;
};

// The number of this machine that a name stands for: the first that can be bound, IPv4 before IPv6, so that all ranks choose one family.
// Gloo itself does not survive a name that nobody knows.
std::string bindable(const std::string& address) {
  std::string problem;
  for (const int family : {AF_INET, AF_INET6}) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int code = getaddrinfo(address.c_str(), nullptr, &hints, &found); code != 0) {
      if (problem.empty()) problem = gai_strerror(code);
      continue;
    }
    std::string number;
    for (const addrinfo* place = found; place != nullptr && number.empty(); place = place->ai_next) {
      const int test = socket(place->ai_family, place->ai_socktype, place->ai_protocol);
      char text[NI_MAXHOST] = "";
      if (test < 0 || bind(test, place->ai_addr, place->ai_addrlen) != 0) {
        problem = std::strerror(errno);
      } else if (getnameinfo(place->ai_addr, place->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
        number = text;
      }
      if (test >= 0) ::close(test);
    }
    freeaddrinfo(found);
    if (!number.empty()) return number;
  }
  throw std::runtime_error(problem);
}

// Gloo's store on ours. A rank that does not come is named.
class StoreForGloo : public gloo::rendezvous::Store {
 public:
  StoreForGloo(RendezvousStore& store, std::string prefix, double timeout_seconds)
      : store_(store), prefix_(std::move(prefix)), limit_(Clock::now() + as_milliseconds(timeout_seconds)) {}

  void set(const std::string& key, const std::vector<char>& data) override { store_.set(prefix_ + "/" + key, std::string(data.begin(), data.end())); }
  std::vector<char> get(const std::string& key) override {
    try {
      const std::string value = store_.get(prefix_ + "/" + key, std::max(0.001, std::chrono::duration<double>(limit_ - Clock::now()).count()));
      return {value.begin(), value.end()};
    } catch (const Error& fault) {
      const bool number = !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == std::string::npos;
      throw GlooFault(GlooFault::Kind::Late, number ? std::stoi(key) : -1, fault.what());
    }
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

 private:
  RendezvousStore& store_;
  const std::string prefix_;
  const Clock::time_point limit_;
};

// One message under way.
struct Message {
  int peer = 0;
  bool comes = false;  // or goes
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;

  bool wait(milliseconds limit) const { return comes ? buffer->waitRecv(limit) : buffer->waitSend(limit); }
  void wake() const { comes ? buffer->abortWaitRecv() : buffer->abortWaitSend(); }
};

}  // namespace

struct GlooMesh::Parts {
  Parts(int rank, int size) : context(std::make_shared<gloo::rendezvous::Context>(rank, size)) {}

  // Nothing is sent on the sentinel's slot: its wait throws once the connection is broken, else returns at once, told to by the call before.
  bool broken(int peer) {
    try {
      sentinels[static_cast<std::size_t>(peer)]->abortWaitRecv();
      sentinels[static_cast<std::size_t>(peer)]->waitRecv(milliseconds(1));
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  // One look at what is waited for. A broken connection counts from the second look on: the message may have arrived just before.
  void look() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (current == nullptr) return;
    if (Clock::now() > deadline) {
      late = true;
      current->wake();
    } else if (broken(current->peer)) {
      if (suspect == current) current->wake();
      suspect = current;
    }
  }

  std::shared_ptr<gloo::rendezvous::Context> context;
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> sentinels;  // by rank; null for this one
  std::mutex mutex;
  bool ended = false, late = false;
  const Message* current = nullptr;  // what is waited for
  const Message* suspect = nullptr;
  Clock::time_point deadline;
};

class GlooDevice {
 public:
  explicit GlooDevice(const std::string& address) {
    const WithoutPipeSignal guard;
    gloo::transport::tcp::attr attributes;
    attributes.hostname = bindable(address);
    device = gloo::transport::tcp::CreateDevice(attributes);
    watcher_ = std::thread([this] { watch(); });
  }
  ~GlooDevice() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    watcher_.join();
  }
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

  void add(GlooMesh::Parts* parts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    watched_.push_back(parts);
  }
  void remove(GlooMesh::Parts* parts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    watched_.erase(std::remove(watched_.begin(), watched_.end(), parts), watched_.end());
  }

  std::shared_ptr<gloo::transport::Device> device;

 private:
  void watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
      changed_.wait_for(lock, kTick);
      for (GlooMesh::Parts* parts : watched_) parts->look();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::vector<GlooMesh::Parts*> watched_;
  std::thread watcher_;
};

std::shared_ptr<GlooDevice> open_gloo_device(const std::string& address) {
  try {
    return std::make_shared<GlooDevice>(address);
  } catch (const std::exception& fault) {
    throw Error(ErrorCode::CommunicationFailed, ErrorText{"cannot bind to an address for the other ranks", "address " + address, fault.what(),
                                                          "a name or number of this machine that the other ranks reach", ""});
  }
}

GlooMesh::GlooMesh(std::shared_ptr<GlooDevice> device, RendezvousStore& store, const std::string& prefix, int rank, int size, double timeout_seconds)
    : device_(std::move(device)), parts_(std::make_unique<Parts>(rank, size)) {
  const WithoutPipeSignal guard;
  try {
    StoreForGloo adapted(store, prefix, timeout_seconds);
    parts_->context->setTimeout(as_milliseconds(timeout_seconds / 5));  // Gloo gives connecting five times as long
    parts_->context->connectFullMesh(adapted, device_->device);
    parts_->sentinels.resize(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      std::unique_ptr<gloo::transport::UnboundBuffer>& sentinel = parts_->sentinels[static_cast<std::size_t>(peer)];
      sentinel = parts_->context->createUnboundBuffer(nullptr, 0);
      sentinel->recv(peer, kSentinelSlot);
    }
  } catch (const GlooFault&) {
    throw;
  } catch (const std::exception& fault) {
    throw GlooFault(GlooFault::Kind::Lost, -1, fault.what());
  }
  device_->add(parts_.get());
}

GlooMesh::~GlooMesh() { device_->remove(parts_.get()); }

void GlooMesh::exchange(std::uint64_t slot, const std::vector<GlooPiece>& sends, const std::vector<GlooPiece>& receives, double timeout_seconds) {
  const WithoutPipeSignal guard;
  Parts& parts = *parts_;
  std::vector<Message> messages;
  {
    const std::lock_guard<std::mutex> lock(parts.mutex);
    if (parts.ended) throw GlooFault(GlooFault::Kind::Ended, -1, "the group has ended");
    for (const bool comes : {true, false}) {
      for (const GlooPiece& piece : comes ? receives : sends) {
        if (piece.bytes == 0) continue;
        try {
          messages.push_back({piece.peer, comes, parts.context->createUnboundBuffer(piece.data, static_cast<std::size_t>(piece.bytes))});
          comes ? messages.back().buffer->recv(piece.peer, slot) : messages.back().buffer->send(piece.peer, slot);
        } catch (const std::exception& fault) {
          throw GlooFault(GlooFault::Kind::Lost, piece.peer, fault.what());
        }
      }
    }
    parts.deadline = Clock::now() + as_milliseconds(timeout_seconds);
    parts.late = false;
  }
  const milliseconds longest = as_milliseconds(timeout_seconds + 60);  // beyond our own deadline: Gloo's time-out would break everything
  for (const Message& message : messages) {
    {
      const std::lock_guard<std::mutex> lock(parts.mutex);
      if (parts.ended) throw GlooFault(GlooFault::Kind::Ended, message.peer, "the group has ended");
      parts.current = &message;
      parts.suspect = nullptr;
    }
    bool done = false;
    std::string problem;
    try {
      done = message.wait(longest);
    } catch (const std::exception& fault) {
      problem = fault.what();
    }
    bool ended = false, late = false;
    {
      const std::lock_guard<std::mutex> lock(parts.mutex);
      parts.current = nullptr;
      ended = parts.ended;
      late = parts.late;
    }
    if (done) continue;
    if (ended) throw GlooFault(GlooFault::Kind::Ended, message.peer, "the group has ended");
    if (!problem.empty()) throw GlooFault(GlooFault::Kind::Lost, message.peer, problem);
    if (late) throw GlooFault(GlooFault::Kind::Late, message.peer, "the deadline has passed");
    // Woken because the connection is broken; the message may have come all the same, at the last moment.
    try {
      if (message.wait(milliseconds(1))) continue;
    } catch (const std::exception& fault) {
      problem = fault.what();
    }
    throw GlooFault(GlooFault::Kind::Lost, message.peer, "the connection broke within a message");
  }
}

void GlooMesh::end() {
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  parts_->ended = true;
  if (parts_->current != nullptr) parts_->current->wake();
}

void GlooMesh::close() {
  end();
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  try {
    parts_->context->closeConnections();
  } catch (const std::exception&) {
    // Connections that are broken already.
  }
}

}  // namespace deltron
