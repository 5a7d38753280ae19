#include "lib/base/worker_pool.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace ckpt;

TEST_CASE("worker pool: every job runs once, and finish waits for the last") {
  WorkerPool pool(3, 4);
  std::atomic<int> ran{0};
  for (int i = 0; i < 500; ++i) {
    REQUIRE(pool.submit([&]() -> Result<void> {
      ran.fetch_add(1);
      return {};
    }));
  }
  REQUIRE(pool.finish());
  CHECK(ran == 500);
  REQUIRE(pool.submit([&]() -> Result<void> {
    ran.fetch_add(1);
    return {};
  }));
  REQUIRE(pool.finish());
  CHECK(ran == 501);
}

TEST_CASE("worker pool: the first error stops what has not begun, and finish returns it") {
  WorkerPool pool(1, 1000);
  std::atomic<int> ran{0};
  bool accepted = true;
  for (int i = 0; i < 1000 && accepted; ++i) {
    accepted = pool.submit([&, i]() -> Result<void> {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ran.fetch_add(1);
      if (i >= 2) return fail(Code::kIo, "job " + std::to_string(i), "broke");
      return {};
    });
  }
  Result<void> result = pool.finish();
  REQUIRE_FALSE(result);
  CHECK(result.error().subject == "job 2");
  CHECK(ran == 3);
  CHECK_FALSE(pool.submit([]() -> Result<void> { return {}; }));
}

TEST_CASE("worker pool: whoever submits too fast waits for room in the queue") {
  WorkerPool pool(2, 3);
  std::atomic<int> waiting{0}, most{0};
  for (int i = 0; i < 100; ++i) {
    int now = ++waiting;
    if (now > most) most = now;
    REQUIRE(pool.submit([&]() -> Result<void> {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      --waiting;
      return {};
    }));
  }
  REQUIRE(pool.finish());
  CHECK(most <= 2 + 3 + 1);  // running, queued, and the one being submitted
}

TEST_CASE("worker pool: a job that throws is an error, not the end of the program") {
  WorkerPool no_room(1);
  no_room.submit([]() -> Result<void> { throw std::bad_alloc(); });
  Result<void> result = no_room.finish();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::kNoRoom);

  WorkerPool bug(1);
  bug.submit([]() -> Result<void> { throw std::logic_error("wrong turn"); });
  result = bug.finish();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Code::kBug);
  CHECK(result.error().text().find("wrong turn") != std::string::npos);
}

TEST_CASE("worker pool: signals stay with the thread that asked for the pool") {
  WorkerPool pool(1);
  std::atomic<bool> blocked{false};
  pool.submit([&]() -> Result<void> {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1;
    return {};
  });
  REQUIRE(pool.finish());
  CHECK(blocked);
  sigset_t mine;
  pthread_sigmask(SIG_BLOCK, nullptr, &mine);
  CHECK(sigismember(&mine, SIGINT) == 0);
}

TEST_CASE("worker pool: destroyed without finish it drops the queue and joins") {
  std::atomic<int> ran{0};
  {
    WorkerPool pool(1, 100);
    for (int i = 0; i < 100; ++i) {
      pool.submit([&]() -> Result<void> {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ran.fetch_add(1);
        return {};
      });
    }
  }
  CHECK(ran < 100);
}

TEST_CASE("side by side: each is taken once, with and without helpers") {
  std::optional<WorkerPool> helpers;
  make_helpers(4, helpers);
  REQUIRE(helpers);
  CHECK(helpers->threads() == 3);
  for (WorkerPool* pool : {&*helpers, static_cast<WorkerPool*>(nullptr)}) {
    for (size_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> taken(count);
      REQUIRE(side_by_side(pool, count, [&](size_t i) -> Result<void> {
        taken[i].fetch_add(1);
        return {};
      }));
      CHECK(std::all_of(taken.begin(), taken.end(), [](const auto& times) { return times == 1; }));
    }
  }
  std::optional<WorkerPool> none;
  make_helpers(1, none);
  CHECK_FALSE(none);
}

TEST_CASE("side by side: the first one's error wins, whoever fails first") {
  std::optional<WorkerPool> helpers;
  make_helpers(4, helpers);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::atomic<int>> taken(500);
    auto done = side_by_side(&*helpers, taken.size(), [&](size_t i) -> Result<void> {
      taken[i].fetch_add(1);
      if (i == 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // others have failed by then
      if (i >= 3) return fail(Code::kIo, std::to_string(i), "broke");
      return {};
    });
    REQUIRE_FALSE(done);
    CHECK(done.error().subject == "3");
    CHECK(std::all_of(taken.begin(), taken.begin() + 4, [](const auto& times) { return times == 1; }));
    CHECK(taken.back() == 0);
  }
  REQUIRE(side_by_side(&*helpers, 10, [](size_t) { return Result<void>(); }));
}

TEST_CASE("side by side: what throws is waited for") {
  std::optional<WorkerPool> helpers;
  make_helpers(2, helpers);
  const std::thread::id here = std::this_thread::get_id();
  auto takes = [&](size_t) -> Result<void> {
    if (std::this_thread::get_id() == here) throw std::runtime_error("broke");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {};
  };
  CHECK_THROWS_AS((void)side_by_side(&*helpers, 100, takes), std::runtime_error);
}
