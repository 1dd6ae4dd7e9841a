// See wire.h.
#include "distributed/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace deltron::wire {
namespace {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  explicit Deadline(double seconds) : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  int left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return left > 0 ? static_cast<int>(std::min<std::int64_t>(left, 1000000)) : 0;
  }

 private:
  Clock::time_point end_;
};

bool wait_for(int descriptor, short events, const Deadline& deadline) {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    const int ready = ::poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// All bytes of [data, data + size), by `step`, which is send or recv.
template <class Step>
bool all_bytes(int descriptor, short events, std::size_t size, const Deadline& deadline, const Step& step) {
  for (std::size_t done = 0; done < size;) {
    if (!wait_for(descriptor, events, deadline)) return false;
    const ssize_t moved = step(done, size - done);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
    } else if (moved == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    }
  }
  return true;
}

void set_up(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

}  // namespace

std::string pack(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    const auto size = static_cast<std::uint32_t>(part.size());
    text.append(reinterpret_cast<const char*>(&size), sizeof(size));
    text += part;
  }
  return text;
}

std::optional<std::vector<std::string>> unpack(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    std::uint32_t size = 0;
    if (text.size() - at < sizeof(size)) return std::nullopt;
    std::memcpy(&size, text.data() + at, sizeof(size));
    at += sizeof(size);
    if (text.size() - at < size) return std::nullopt;
    parts.push_back(text.substr(at, size));
    at += size;
  }
  return parts;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.descriptor_;
    other.descriptor_ = -1;
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

bool Socket::send(const std::string& message, double seconds) const {
  if (!open() || message.size() > kMostBytes) return false;
  const auto size = static_cast<std::uint32_t>(message.size());
  std::string framed(reinterpret_cast<const char*>(&size), sizeof(size));
  framed += message;
  return all_bytes(descriptor_, POLLOUT, framed.size(), Deadline(seconds), [&](std::size_t at, std::size_t left) {
    return ::send(descriptor_, framed.data() + at, left, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

bool Socket::receive(std::string& message, double seconds) const {
  if (!open()) return false;
  const Deadline deadline(seconds);
  const auto fill = [&](char* to, std::size_t size) {
    return all_bytes(descriptor_, POLLIN, size, deadline, [&](std::size_t at, std::size_t left) { return ::recv(descriptor_, to + at, left, MSG_DONTWAIT); });
  };
  std::uint32_t size = 0;
  if (!fill(reinterpret_cast<char*>(&size), sizeof(size)) || size > kMostBytes) return false;
  message.resize(size);
  return size == 0 || fill(message.data(), size);
}

Socket listen_on(int port, std::string& problem) {
  Socket socket(::socket(AF_INET6, SOCK_STREAM, 0));
  const bool six = socket.open();
  if (!six) socket = Socket(::socket(AF_INET, SOCK_STREAM, 0));
  const int on = 1, off = 0;
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int bound = -1;
  if (six) {
    setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    bound = ::bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    bound = ::bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  if (bound != 0 || ::listen(socket.descriptor(), 4096) != 0) {
    problem = std::strerror(errno);
    return Socket();
  }
  fcntl(socket.descriptor(), F_SETFD, FD_CLOEXEC);
  return socket;
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

std::string own_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[NI_MAXHOST] = {};
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  if (getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

Socket connect_to(const std::string& address, int port, double seconds, std::string& problem) {
  const Deadline deadline(seconds);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int code = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0) {
    problem = gai_strerror(code);
    return Socket();
  }
  Socket connected;
  for (const addrinfo* entry = found; entry != nullptr && !connected.open(); entry = entry->ai_next) {
    Socket socket(::socket(entry->ai_family, entry->ai_socktype | SOCK_NONBLOCK, entry->ai_protocol));
    if (!socket.open()) continue;
    int code = ::connect(socket.descriptor(), entry->ai_addr, entry->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS) {
      socklen_t size = sizeof(code);
      code = ETIMEDOUT;
      if (wait_for(socket.descriptor(), POLLOUT, deadline)) getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &code, &size);
    }
    if (code == 0) {
      connected = std::move(socket);
      set_up(connected.descriptor());
    } else {
      problem = std::strerror(code);
    }
  }
  freeaddrinfo(found);
  return connected;
}

}  // namespace deltron::wire
