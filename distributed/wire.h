// Sockets and messages of the ranks' control plane: whole messages with a deadline, limits on their size. Internal to tcp_store.*.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deltron::wire {

inline constexpr std::uint32_t kMostBytes = 16u << 20;  // of a message

// Strings, one after the other, each with its length.
std::string pack(const std::vector<std::string>& parts);
// Nothing where `text` is not made of such strings.
std::optional<std::vector<std::string>> unpack(const std::string& text);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  int descriptor() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }
  void close();

  // Whole messages; false once the connection is gone, the message too long, or `seconds` have passed.
  bool send(const std::string& message, double seconds) const;
  bool receive(std::string& message, double seconds) const;

 private:
  int descriptor_ = -1;
};

// A listening socket on every address of this machine; port 0: a free one. Closed socket and `problem` where it cannot be had.
Socket listen_on(int port, std::string& problem);
int port_of(const Socket& socket);
std::string own_address(const Socket& socket);  // as a number; of this end
// One try. Closed socket and `problem` where nobody listens.
Socket connect_to(const std::string& address, int port, double seconds, std::string& problem);

}  // namespace deltron::wire
