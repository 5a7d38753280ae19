#include "cli/courier.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "lib/base/clock.h"

using namespace ckpt;
using namespace ckpt::cli;

namespace {

/// One member of three; what it hears is what it says, after a while, and from "no" on nothing.
class Echo final : public Transport {
 public:
  explicit Echo(int file) : file_(file) {}
  ~Echo() override { (void)!::write(file_, "end", 3); }
  uint32_t rank() const override { return 1; }
  uint32_t size() const override { return 3; }
  Result<Request> send(uint32_t, uint32_t, ByteSpan) override { return Request{0}; }
  Result<Request> receive(uint32_t, uint32_t, MutableByteSpan) override { return Request{0}; }
  Result<void> wait(Request) override { return {}; }
  Result<std::vector<std::string>> all_gather(const std::string& mine) override {
    if (mine == "no") return fail(Code::kIo, "MPI", "is broken");
    if (mine == "die") ::raise(SIGKILL);
    if (mine == "late") std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return std::vector<std::string>{"", mine, mine + mine};
  }

 private:
  int file_;
};

struct Started {
  int ends[2];
  std::unique_ptr<Courier> courier;
  Cancel cancel;
  Started() {
    REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    auto made = Courier::start(
        [this]() -> Result<std::unique_ptr<Transport>> { return std::unique_ptr<Transport>(new Echo(ends[1])); },
        cancel);
    REQUIRE(made);
    courier = std::move(*made);
  }
  ~Started() {
    courier.reset();
    ::close(ends[0]), ::close(ends[1]);
  }
  /// Whether it has ended in order.
  bool ended_well() const {
    char text[4] = "";
    return ::read(ends[0], text, 3) == 3;
  }
};

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("courier: what is said is carried, large and empty") {
  Started one;
  CHECK((one.courier->rank() == 1 && one.courier->size() == 3));
  const std::string large(3'000'000, 'x');
  for (const std::string& word : {std::string("word"), std::string(), std::string("a\0b", 3), large}) {
    const auto answer = one.courier->gather(word, {});
    REQUIRE(answer);
    CHECK(*answer == Words{"", word, word + word});
  }
  one.courier->end();
  one.courier->finish();
  CHECK(one.ended_well());
  CHECK(!one.courier->gather("more", {}));
}

TEST_CASE("courier: a wait can be given up, and the answer comes all the same") {
  Started one;
  const auto timed_out = one.courier->gather("late", {nullptr, 1'000});
  REQUIRE(!timed_out);
  CHECK(timed_out.error().code == Code::kBusy);
  CHECK(one.courier->is_overdue());
  CHECK(!one.courier->gather("another", {}));
  one.cancel.request();
  CHECK(one.courier->overdue({&one.cancel}).error().code == Code::kInterrupted);
  const auto answer = one.courier->overdue({});
  REQUIRE(answer);
  CHECK(*answer == Words{"", "late", "latelate"});
  CHECK(!one.courier->is_overdue());
}

TEST_CASE("courier: MPI that breaks, or is killed, is an error and no end in order") {
  for (const char* word : {"no", "die"}) {
    Started one;
    const auto answer = one.courier->gather(word, {});
    REQUIRE(!answer);
    CHECK(answer.error().code == Code::kIo);
    CHECK(!one.courier->is_overdue());
    CHECK(!one.courier->gather("word", {}));
    one.courier->end();
    one.courier->finish();
    CHECK(!one.ended_well());
  }
}

TEST_CASE("courier: without an end that was agreed on the launcher hears of a failure") {
  Started one;
  CHECK(one.courier->gather("word", {}));
  one.courier->finish();
  CHECK(!one.ended_well());
}

TEST_CASE("courier: MPI that does not start is the error") {
  const Cancel cancel;
  auto made = Courier::start(
      []() -> Result<std::unique_ptr<Transport>> {
        return Error(Code::kUsage, "WORLD_SIZE", "is 3, and MPI says 2").with_hint("mpirun");
      },
      cancel);
  REQUIRE(!made);
  CHECK(made.error().text() == "WORLD_SIZE: is 3, and MPI says 2");
  CHECK(made.error().hint == "mpirun");
  CHECK(made.error().code == Code::kUsage);
}

TEST_CASE("courier: a forked process may use it and say that all is agreed on") {
  Started one;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool heard = one.courier->gather("word", {}).has_value();
    one.courier->end();
    one.courier->finish();
    ::_exit(heard ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  CHECK(one.courier->has_ended());
  one.courier->finish();
  CHECK(one.ended_well());
}
