// The store over TCP and the watchdog: notes, refusals, who is gone and who tells it, calls that wait too long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>

#include "distributed/process_world.h"
#include "distributed/tcp_store.h"
#include "distributed/watchdog.h"
#include "src/base/error.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
constexpr const char* kHere = "127.0.0.1";

template <class Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::CommunicationFailed);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(TcpStore, notes_of_any_bytes_reach_the_other_ranks) {
  const TcpStoreServer server(0, "job", 3);
  TcpStore first(kHere, server.port(), "job", 0, 3, 5), second(kHere, server.port(), "job", 1, 3, 5);
  std::future<std::string> waits = std::async(std::launch::async, [&] { return second.get("id", 5); });
  const std::string bytes("\0\xff\n deltron", 11);
  first.set("id", bytes);
  EXPECT_EQ(waits.get(), bytes);
  first.set("id", std::string(1 << 20, 'x'));
  EXPECT_EQ(second.get("id", 1).size(), std::size_t{1} << 20);
  EXPECT_THAT(message_of([&] { second.get("never", 0.1); }), HasSubstr("waited 0 s for 'never'"));
}

TEST(TcpStore, refuses_who_does_not_belong) {
  const TcpStoreServer server(0, "job", 2);
  const TcpStore first(kHere, server.port(), "job", 0, 2, 5);
  EXPECT_THAT(message_of([&] { TcpStore(kHere, server.port(), "other", 1, 2, 1); }), HasSubstr("another job: 'other', rank 0 is of 'job'"));
  EXPECT_THAT(message_of([&] { TcpStore(kHere, server.port(), "job", 1, 3, 1); }), HasSubstr("another world size: 3, rank 0 waits for 2"));
  EXPECT_THAT(message_of([&] { TcpStore(kHere, server.port(), "job", 0, 2, 1); }), HasSubstr("rank 0 is there already"));
  EXPECT_THAT(message_of([&] { TcpStoreServer(server.port(), "job", 2); }), HasSubstr("cannot listen"));
  const int port = server.port();
  EXPECT_THAT(message_of([&] { TcpStore(kHere, port == 1 ? 2 : 1, "job", 1, 2, 0.2); }), HasSubstr("does not answer"));
}

TEST(TcpStore, garbage_closes_its_own_connection_alone) {
  const TcpStoreServer server(0, "job", 2);
  TcpStore first(kHere, server.port(), "job", 0, 2, 5);
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\4\0\0\0abcd", 8), std::string("\xff\xff\xff\xff", 4), std::string("\1", 1)}) {
    std::string problem;
    const wire::Socket stranger = wire::connect_to(kHere, server.port(), 2, problem);
    ASSERT_TRUE(stranger.open()) << problem;
    EXPECT_EQ(::send(stranger.descriptor(), garbage.data(), garbage.size(), MSG_NOSIGNAL), static_cast<ssize_t>(garbage.size()));
    first.set("still", "there");
    EXPECT_EQ(first.get("still", 1), "there");
  }
  EXPECT_TRUE(first.beat("well").gone.empty());
}

TEST(TcpStore, a_killed_process_is_news_and_a_goodbye_is_not) {
  const TcpStoreServer server(0, "job", 3);
  TcpStore first(kHere, server.port(), "job", 0, 3, 5);
  { TcpStore leaves(kHere, server.port(), "job", 1, 3, 5); }
  EXPECT_TRUE(first.beat("here").gone.empty());
  const pid_t child = fork();
  if (child == 0) {
    TcpStore other(kHere, server.port(), "job", 2, 3, 5);
    other.beat("step 7");
    kill(getpid(), SIGKILL);
    _exit(1);
  }
  waitpid(child, nullptr, 0);
  JobNews news;
  for (int tries = 0; tries < 30 && news.gone.empty(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    news = first.beat("here");
  }
  ASSERT_EQ(news.gone.size(), 1u);
  EXPECT_EQ(news.gone[0].rank, 2);
  EXPECT_EQ(news.gone[0].last_word, "step 7");
}

// Two ranks with their watchdogs; `aborted` and `ended` hold what rank r was told.
class Watched : public ::testing::Test {
 protected:
  Watched() : server_(0, "job", 2) {
    for (int rank = 0; rank < 2; ++rank) {
      WatchdogOptions options;
      options.deadline_seconds = 0.4;
      options.grace_seconds = 0.3;
      options.beat_seconds = 0.05;
      options.abort = [this, rank](const std::string& reason) { aborted_[rank].set_value(reason); };
      options.end_process = [this, rank](const std::string& reason) { ended_[rank].set_value(reason); };
      dogs_[rank] = std::make_unique<Watchdog>(std::make_shared<TcpStore>(kHere, server_.port(), "job", rank, 2, 5), options);
    }
  }
  static std::string wait(std::promise<std::string>& promise) {
    std::future<std::string> future = promise.get_future();
    return future.wait_for(std::chrono::seconds(5)) == std::future_status::ready ? future.get() : "nothing";
  }
  TcpStoreServer server_;
  std::promise<std::string> aborted_[2], ended_[2];
  std::unique_ptr<Watchdog> dogs_[2];
};

TEST_F(Watched, a_call_that_waits_too_long_says_who_is_elsewhere) {
  dogs_[0]->note("step 12");
  dogs_[1]->note("evaluation at step 11");
  dogs_[0]->begin({.kind = CollectiveKind::AllReduce, .what = "gradients"}, "dp", 2);
  const std::string reason = wait(aborted_[0]);
  EXPECT_THAT(reason, HasSubstr("all-reduce 'gradients' of group dp has waited for 0 s; there: ranks 0; elsewhere: rank 1 (evaluation at step 11)"));
  EXPECT_EQ(dogs_[0]->reason(), reason);
  EXPECT_EQ(wait(ended_[0]), reason) << "the thread did not leave within the grace";
}

TEST_F(Watched, a_fault_of_one_rank_is_the_reason_of_the_other) {
  dogs_[1]->leave("E301 token file is cut short");
  EXPECT_EQ(wait(aborted_[0]), "rank 1 ended: E301 token file is cut short");
}

TEST_F(Watched, calls_that_come_back_and_goodbyes_are_no_reason) {
  for (int i = 0; i < 10; ++i) {
    dogs_[0]->begin({.kind = CollectiveKind::Barrier, .what = "x"}, "world", 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    dogs_[0]->end();
  }
  dogs_[1]->leave();
  dogs_[1].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(dogs_[0]->reason(), "");
}

// Processes that meet, sum and part; one of them is killed in the second round.
TEST(ProcessWorld, ranks_meet_and_a_killed_one_ends_the_others_with_its_name) {
  for (const bool killed : {false, true}) {
    const int port = TcpStoreServer(0, "probe", 1).port();
    std::vector<pid_t> children;
    for (int rank = 0; rank < 3; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        int code = 1;
        try {
          RankEnvironment place;
          place.rank = place.local_rank = rank;
          place.world_size = place.local_size = 3;
          place.port = port;
          ProcessWorld world(place, {.nccl = false, .timeout_seconds = 20});
          ContextOptions options;
          options.threads = 1;
          options.pin_threads = false;
          Context ctx(options);
          const std::shared_ptr<Communicator> group = world.connect(ctx);
          const Tensor x = make_tensor(ctx, {1}, DType::F32, {1.0 + rank}, "x");
          group->all_reduce(ctx, x, "sum");
          code = to_doubles(ctx, x)[0] == 6 ? 0 : 2;
          if (killed) {
            if (rank == 1) kill(getpid(), SIGKILL);
            try {
              group->all_reduce(ctx, x, "second sum");
              code = 3;
            } catch (const Error& error) {
              for (int tries = 0; tries < 30 && world.reason().empty(); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(100));
              code = error.code() == ErrorCode::CommunicationFailed && world.reason().find("rank 1 is gone") != std::string::npos ? 0 : 4;
            }
          }
          world.leave();
        } catch (const std::exception&) {
          code = 5;
        }
        _exit(code);
      }
      children.push_back(child);
    }
    for (int rank = 0; rank < 3; ++rank) {
      int status = 0;
      waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
      if (killed && rank == 1) {
        EXPECT_TRUE(WIFSIGNALED(status));
      } else {
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": " << (WIFEXITED(status) ? WEXITSTATUS(status) : -1);
      }
    }
  }
}

}  // namespace
}  // namespace deltron
