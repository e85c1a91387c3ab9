#include "shm/mail.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/error.h"

// Ranks are threads here; tests/comm has messages of processes that die.
using namespace lockstep;
using namespace std::chrono_literals;

namespace {

class MailOfThreads {
 public:
  explicit MailOfThreads(int ranks, std::function<bool(int)> ended = {}) {
    const auto segment = std::make_shared<const SharedSegment>(
        SharedSegment::create(kOffset + ShmMail::bytes_needed(ranks)));
    for (int rank = 0; rank < ranks; ++rank) {
      mails_.push_back(std::make_unique<ShmMail>(
          segment, kOffset, ShmMail::Options{.rank = rank, .size = ranks, .peer_ended = ended}));
    }
  }
  ShmMail& of(int rank) { return *mails_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(mails_.size()); }

  void run(const std::function<void(int, ShmMail&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] { body(rank, of(rank)); });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  static constexpr std::size_t kOffset = 128;
  std::vector<std::unique_ptr<ShmMail>> mails_;
};

using Words = std::vector<std::uint32_t>;

Words words(std::uint32_t seed, std::size_t count) {
  Words result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = seed * 2654435761U + static_cast<std::uint32_t>(i);
  }
  return result;
}

ShmMail::Content content(Words& data, std::uint32_t tag = 0) {
  return {.data = data.data(), .bytes = data.size() * sizeof(data[0]), .tag = tag};
}

std::string error_of(ShmMail& mail, const ShmMail::MessagePtr& message,
                     std::chrono::milliseconds timeout = 20s) {
  try {
    mail.wait(message, timeout);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

double thread_cpu() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// Of all sizes, from everybody to everybody, sent before anything is received: what is larger than
// a ring must not keep others from passing.
TEST(Mail, every_pair_exchanges_messages_of_any_size) {
  const std::vector<std::size_t> sizes{0, 1, 3, 1000, 65'535, 65'537, 700'001};
  MailOfThreads mail(4);
  mail.run([&](int rank, ShmMail& mine) {
    const auto seed = [&](int from, int to, std::size_t index) {
      return static_cast<std::uint32_t>(100 * from + 10 * to) + static_cast<std::uint32_t>(index);
    };
    std::vector<ShmMail::MessagePtr> pending;
    std::vector<std::unique_ptr<Words>> sent;
    for (int step = 1; step < mail.size(); ++step) {
      const int peer = (rank + step) % mail.size();
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        sent.push_back(std::make_unique<Words>(words(seed(rank, peer, i), sizes[i])));
        pending.push_back(mine.send(peer, content(*sent.back())));
      }
    }
    for (int step = 1; step < mail.size(); ++step) {
      const int peer = (rank + mail.size() - step) % mail.size();
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        Words got(sizes[i]);
        const auto message = mine.receive(peer, content(got));
        mine.wait(message, 20s);
        EXPECT_EQ(got, words(seed(peer, rank, i), sizes[i])) << rank << " from " << peer;
      }
    }
    for (const auto& message : pending) mine.wait(message, 20s);
  });
}

TEST(Mail, tags_are_received_in_whatever_order) {
  MailOfThreads mail(2);
  Words a = words(1, 300'000), b = words(2, 10), c = words(3, 20);
  const auto first = mail.of(0).send(1, content(a, 1));
  const auto second = mail.of(0).send(1, content(b, 2));
  const auto third = mail.of(0).send(1, content(c, 1));
  Words got_a(a.size()), got_b(b.size()), got_c(c.size());
  mail.of(1).wait(mail.of(1).receive(0, content(got_b, 2)), 20s);
  EXPECT_EQ(got_b, b);
  mail.of(1).wait(mail.of(1).receive(0, content(got_a, 1)), 20s);
  mail.of(1).wait(mail.of(1).receive(0, content(got_c, 1)), 20s);
  EXPECT_EQ(got_a, a);
  EXPECT_EQ(got_c, c);
  for (const auto& message : {first, second, third}) mail.of(0).wait(message, 20s);
}

TEST(Mail, a_receive_from_anyone_tells_who_it_was) {
  MailOfThreads mail(3);
  Words sent = words(5, 100), got(100);
  const auto receive = mail.of(0).receive(ShmMail::kAnyone, content(got, 7));
  EXPECT_FALSE(mail.of(0).has_ended(receive));
  mail.of(2).wait(mail.of(2).send(0, content(sent, 7)), 20s);
  mail.of(0).wait(receive, 20s);
  EXPECT_EQ(mail.of(0).source_of(receive), 2);
  EXPECT_EQ(got, sent);
}

TEST(Mail, a_large_message_arrives_while_nobody_waits) {
  MailOfThreads mail(2);
  Words sent = words(5, 2'000'000), got(sent.size());
  std::atomic<bool> arrived = false;
  auto wanted = content(got);
  wanted.arrived = [&] { arrived = true; };
  const auto receive = mail.of(1).receive(0, std::move(wanted));
  const auto send = mail.of(0).send(1, content(sent));
  while (!arrived) std::this_thread::sleep_for(1ms);
  mail.of(0).wait(send, 20s);
  mail.of(1).wait(receive, 20s);
  EXPECT_EQ(got, sent);
}

TEST(Mail, a_message_of_another_size_is_told_and_breaks_nothing) {
  MailOfThreads mail(2);
  Words sent = words(1, 10), next = words(2, 20), got(20);
  mail.of(0).wait(mail.of(0).send(1, content(sent)), 20s);
  mail.of(0).wait(mail.of(0).send(1, content(next)), 20s);
  const std::string error = error_of(mail.of(1), mail.of(1).receive(0, content(got)));
  EXPECT_NE(error.find("sends 40 bytes to rank 1, which expects 80"), std::string::npos) << error;
  mail.of(1).wait(mail.of(1).receive(0, content(got)), 20s);
  EXPECT_EQ(got, next);
}

TEST(Mail, a_peer_that_ends_is_not_waited_for_but_others_are) {
  std::atomic<bool> ended = false;
  MailOfThreads mail(3, [&](int peer) { return peer == 2 && ended; });
  Words small(1), large(1'000'000), from_one(1);
  const auto lost = mail.of(0).receive(2, content(small));
  const auto stuck = mail.of(0).send(2, content(large));
  const auto good = mail.of(0).receive(1, content(from_one));
  ended = true;
  EXPECT_NE(error_of(mail.of(0), lost).find("remote process exited"), std::string::npos);
  EXPECT_NE(error_of(mail.of(0), stuck).find("remote process exited"), std::string::npos);
  EXPECT_FALSE(mail.of(0).has_ended(good));
  Words sent = words(3, 1);
  mail.of(1).wait(mail.of(1).send(0, content(sent)), 20s);
  mail.of(0).wait(good, 20s);
  EXPECT_EQ(from_one, sent);
}

TEST(Mail, what_was_sent_before_leaving_arrives) {
  MailOfThreads mail(2);
  Words sent = words(3, 100), got(100);
  mail.of(0).wait(mail.of(0).send(1, content(sent)), 20s);
  mail.of(0).leave();
  mail.of(1).wait(mail.of(1).receive(0, content(got)), 20s);
  EXPECT_EQ(got, sent);
  EXPECT_NE(error_of(mail.of(1), mail.of(1).receive(0, content(got))), "");
  EXPECT_NE(error_of(mail.of(0), mail.of(0).send(1, content(sent))), "");
}

TEST(Mail, leaving_wakes_those_who_wait_here_and_there) {
  MailOfThreads mail(2);
  mail.run([&](int rank, ShmMail& mine) {
    Words got(100);
    std::thread leaver([&] {
      std::this_thread::sleep_for(20ms);
      if (rank == 0) mine.leave();
    });
    EXPECT_NE(error_of(mine, mine.receive(1 - rank, content(got)), 60s), "");
    leaver.join();
  });
}

TEST(Mail, nobody_waits_longer_than_the_timeout) {
  MailOfThreads mail(2);
  Words got(1);
  const std::string error = error_of(mail.of(0), mail.of(0).receive(1, content(got)), 50ms);
  EXPECT_NE(error.find("Timed out after 50 ms"), std::string::npos) << error;
}

TEST(Mail, a_long_wait_leaves_the_core_to_others) {
  MailOfThreads mail(2);
  Words got(1);
  const double before = thread_cpu();
  error_of(mail.of(0), mail.of(0).receive(1, content(got)), 500ms);
  EXPECT_LT(thread_cpu() - before, 0.05 * 0.5);
}
