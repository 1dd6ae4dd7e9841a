// Connections of one rank with all others of its group over Gloo's TCP transport, and the one thing done over them: pieces of memory go to and
// come from other ranks, all together, before a deadline. Knows no tensors and no sums; Gloo's headers stay in the .cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "distributed/rendezvous_store.h"

namespace deltron {

// An address of this machine that other ranks reach, with the threads that serve all meshes bound to it.
class GlooDevice;
// `address`: a host name or number of this machine. Throws Error(CommunicationFailed) if nothing can be bound to it.
std::shared_ptr<GlooDevice> open_gloo_device(const std::string& address);

struct GlooPiece {
  int peer = 0;
  void* data = nullptr;
  std::int64_t bytes = 0;  // nothing is exchanged for 0
};

class GlooFault : public std::runtime_error {
 public:
  enum class Kind { Lost, Late, Ended };  // the connection broke; the deadline passed; end() was called
  GlooFault(Kind kind, int peer, const std::string& text) : std::runtime_error(text), kind_(kind), peer_(peer) {}
  Kind kind() const { return kind_; }
  int peer() const { return peer_; }  // -1: none in particular

 private:
  Kind kind_;
  int peer_;
};

class GlooMesh {
 public:
  // Meets the other ranks in `store`, below `prefix`, and connects; all ranks of the group do. Throws GlooFault.
  GlooMesh(std::shared_ptr<GlooDevice> device, RendezvousStore& store, const std::string& prefix, int rank, int size, double timeout_seconds);
  ~GlooMesh();  // what was sent still arrives
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Sends and receives all pieces; comes back when the memory of all is free and filled. A piece meets the other side's with the same `slot`
  // (below 2^64 - 1), which must be as long. One thread at a time. Throws GlooFault; the mesh is of no use then, and close() tells the others.
  void exchange(std::uint64_t slot, const std::vector<GlooPiece>& sends, const std::vector<GlooPiece>& receives, double timeout_seconds);

  // Both from any thread.
  void end();    // exchanges, also the one under way, throw
  void close();  // end(), and breaks the connections

 private:
  friend class GlooDevice;
  struct Parts;
  std::shared_ptr<GlooDevice> device_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace deltron
