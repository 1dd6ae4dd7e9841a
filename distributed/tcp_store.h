// The control plane of a job of processes: one small server in rank 0's process, to which every rank stays connected. It holds the notes by
// which ranks meet, and knows who is there: a process that dies loses its connection at once, and the others are told with their next beat.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "distributed/rendezvous_store.h"
#include "distributed/wire.h"

namespace deltron {

// What a rank is told with every beat.
struct JobNews {
  struct Gone {
    int rank = 0;
    std::string last_word;
  };
  std::vector<Gone> gone;                // ranks whose connection ended without a goodbye, in that order
  std::string fault;                     // the first that a rank announced; "": none
  std::vector<std::string> last_words;   // of every rank, where asked for
};

class TcpStoreServer {
 public:
  // Listens on `port` (0: a free one) of every address of this machine. Throws Error(CommunicationFailed) where that is taken.
  TcpStoreServer(int port, const std::string& job_id, int world_size);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  int port() const;
  // Comes back when every rank but `own` has said goodbye or is gone, or after `seconds`.
  void wait_for_goodbyes(double seconds, int own) const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

class TcpStore : public RendezvousStore {
 public:
  // Connects, again and again until `deadline_seconds` have passed. Throws Error(CommunicationFailed) where nobody answers, or where the server
  // refuses: another job, another world size, a rank that is there already, another version of Deltron.
  TcpStore(const std::string& address, int port, const std::string& job_id, int rank, int world_size, double deadline_seconds);
  ~TcpStore() override;  // says goodbye

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout_seconds) override;

  // Says what this rank does and hears the news. Throws Error(CommunicationFailed) where rank 0's process is gone.
  JobNews beat(const std::string& last_word, bool all_words = false);
  void announce_fault(const std::string& text);  // the first one of the job counts; throws nothing

  std::string own_address() const;  // of this machine, on the way to rank 0
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

 private:
  std::vector<std::string> ask(const std::vector<std::string>& request);
  [[noreturn]] void lost() const;

  std::string where_;
  int rank_, world_size_;
  std::mutex mutex_;  // one question at a time
  wire::Socket socket_;
};

}  // namespace deltron
