// Clients of the agent in a program under `ckpt run`: those that go away, hold, talk nonsense, find nobody.
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "plugins/cuda/agent_address.h"
#include "plugins/cuda/agent_message.h"
#include "tests/device/interposer/puppet_process.h"

using namespace ckpt;
using cuda::AgentTarget;

TEST_CASE("a client that is gone leaves the program as it was") {
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    Puppet puppet;
    const uint64_t at = puppet.number("alloc 4194304");
    CHECK(puppet.ask("write 0 21") == "ok");
    CHECK(puppet.ask("hammer 2") == "ok");
    // kill -9 of a process of its own, as it is for a ckpt.
    const pid_t client = ::fork();
    if (client == 0) {
      auto agent = AgentTarget::connect(puppet.pid(), 5 * kSecond);
      if (!agent) ::_exit(1);
      AgentTarget& a = **agent;
      uint64_t id = 0;
      for (const device::Allocation& one : a.allocations().value()) {
        if (one.address.value == at) id = one.id;
      }
      bool done = true;
      if (step >= 1) done = done && a.lock_api(5 * kSecond);
      if (step >= 2) done = done && a.drain(5 * kSecond);
      if (step == 3) done = done && a.begin_cow(64 * kMiB, {}) && a.unlock_api();
      if (step >= 4) done = done && a.release(id);
      if (step == 5) done = done && a.attach(id, -1);
      ::kill(::getpid(), done ? SIGKILL : SIGTERM);
    }
    int status = 0;
    ::waitpid(client, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGKILL);
    CHECK(puppet.ask("check 0 21") == "ok");
    CHECK(puppet.ask("halt").starts_with("ok"));
    auto again = puppet.agent();
    auto about = again->hello();
    REQUIRE(about);
    CHECK(about->api_locked == 0);
    CHECK(about->released == 0);
  }
}

TEST_CASE("memory that is nowhere keeps the API locked until a client brings it") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 31") == "ok");
  UniqueFd offloaded;
  uint64_t id = 0;
  {
    auto agent = puppet.agent();
    id = allocation_at(*agent, at).id;
    stop_and_take(*agent);
    auto fd = agent->export_allocation(id);
    REQUIRE(fd);
    offloaded = std::move(*fd);
    DONE(agent->release(id));
    DONE(agent->forget());
  }
  puppet.say("check 0 31");
  auto agent = puppet.agent();
  auto about = agent->hello();
  REQUIRE(about);
  CHECK(about->api_locked == 1);
  CHECK(about->released == 1);
  DONE(agent->attach(id, offloaded.get()));
  DONE(agent->unlock_api());
  CHECK(puppet.answer() == "ok");
}

TEST_CASE("memory without its content keeps the API locked when a client is gone that should have filled it") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  uint64_t id = 0;
  bool taken_away_again = false;
  SUBCASE("attached") {}
  SUBCASE("attached and taken away again") { taken_away_again = true; }
  {
    auto agent = puppet.agent();
    id = allocation_at(*agent, at).id;
    stop_and_take(*agent);
    DONE(agent->release(id));
    DONE(agent->forget());
    DONE(agent->attach(id, -1));
    if (taken_away_again) DONE(agent->release(id));
  }
  puppet.say("check 0 32");
  auto agent = puppet.agent();
  CHECK(agent->hello().value().api_locked == 1);
  if (taken_away_again) {
    CHECK(agent->hello().value().released == 1);
    DONE(agent->attach(id, -1));
  }
  CHECK(agent->hazards().value().size() == 1);
  auto fd = agent->export_allocation(id);
  REQUIRE(fd);
  {
    const View view(*fd);
    for (size_t i = 0; i < 4 * kMiB / 8; ++i) view.data[i] = word_of(32, i);
  }
  DONE(agent->unlock_api());
  CHECK(agent->hazards().value().empty());
  CHECK(puppet.answer() == "ok");
}

TEST_CASE("a held target has no socket, and listens again when its lease is up") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 41") == "ok");
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, at).id;
  stop_and_take(*agent);
  auto offloaded = agent->export_allocation(id);
  REQUIRE(offloaded);
  DONE(agent->release(id));
  DONE(agent->hold(kSecond / 2));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(puppet.pid()) + "/fd")) {
    std::error_code error;
    CHECK(std::filesystem::read_symlink(entry.path(), error).string().find("socket:") == std::string::npos);
  }
  CHECK(agent->hello().error().code == Code::kNotFound);
  for (int renewal = 0; renewal < 10; ++renewal) {  // twice as long as the lease
    CHECK(AgentTarget::connect(puppet.pid(), 0).error().code == Code::kNotFound);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    agent->renew_lease();
  }
  CHECK(AgentTarget::connect(puppet.pid(), 0).error().code == Code::kNotFound);
  Result<std::unique_ptr<AgentTarget>> again = fail(Code::kBug, "", "");
  for (int i = 0; i < 500 && !again; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    again = AgentTarget::connect(puppet.pid(), kSecond);
  }
  REQUIRE(again);
  CHECK((*again)->hello().value().api_locked == 1);
  DONE((*again)->attach(id, offloaded->get()));
  DONE((*again)->unlock_api());
  CHECK(puppet.ask("check 0 41") == "ok");
}

TEST_CASE("a client that is gone before it could be told of the hold leaves the program as it was") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 43") == "ok");
  const uint64_t id = allocation_at(*puppet.agent(), at).id;
  auto socket = cuda::connect_to_agent(puppet.pid());
  REQUIRE(socket);
  auto say = [&](agent::Type type, uint64_t a, std::string_view payload = {}) {
    agent::Message message;
    message.type = type;
    message.a = a;
    REQUIRE(agent::send_message(socket->get(), message, payload, -1) > 0);
  };
  auto done = [&](agent::Type type, uint64_t a, std::string_view payload = {}) {
    say(type, a, payload);
    pollfd what = {socket->get(), POLLIN, 0};
    REQUIRE(::poll(&what, 1, 10'000) == 1);
    agent::Received in;
    REQUIRE(agent::receive_message(socket->get(), &in) > 0);
    return in.message.status == agent::Status::kDone;
  };
  REQUIRE(done(agent::Type::kLockApi, 5 * kSecond));
  REQUIRE(done(agent::Type::kDrain, 5 * kSecond));
  REQUIRE(done(agent::Type::kRelease, 0, {reinterpret_cast<const char*>(&id), sizeof id}));
  ::kill(puppet.pid(), SIGSTOP);
  int status = 0;
  REQUIRE(::waitpid(puppet.pid(), &status, WUNTRACED) == puppet.pid());  // all its threads stand still
  REQUIRE(WIFSTOPPED(status));
  say(agent::Type::kHold, 3'600'000);
  socket->reset();
  ::kill(puppet.pid(), SIGCONT);
  auto about = puppet.agent()->hello();
  REQUIRE(about);
  CHECK(about->api_locked == 0);
  CHECK(about->released == 0);
  CHECK(puppet.ask("check 0 43") == "ok");
}

TEST_CASE("a program that ends behind a locked API ends when its client goes away") {
  Puppet puppet;
  {
    auto agent = puppet.agent();
    stop_and_take(*agent);
    puppet.say("exit");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    int status = 0;
    CHECK(::waitpid(puppet.pid(), &status, WNOHANG) == 0);
    CHECK(status == 0);
  }
  bool ended = false;
  for (int i = 0; i < 500 && !ended; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = ::waitpid(puppet.pid(), nullptr, WNOHANG) != 0;
  }
  CHECK(ended);
}

TEST_CASE("sockets in a folder of the user's own") {
  char name[] = "/tmp/ckpt-run-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  std::string folder = name;
  SUBCASE("with a short name") {}
  SUBCASE("with the longest that a socket can have") {
    folder += "/" + std::string(107 - folder.size() - 1 - std::strlen("/agent-1234567"), 'x');
  }
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  {
    Puppet puppet({"CKPT_RUN_DIR=" + folder});
    auto agent = puppet.agent();
    CHECK(agent->hello().value().pid == puppet.pid());
    const std::string file = folder + "/agent-" + std::to_string(puppet.pid());
    CHECK(std::filesystem::exists(file));
    CHECK(puppet.ask("fork") == "ok");
    CHECK(std::filesystem::exists(file));
    stop_and_take(*agent);
    DONE(agent->hold(kSecond / 10));
    CHECK(!std::filesystem::exists(file));
    for (int i = 0; i < 500 && !std::filesystem::exists(file); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(puppet.agent()->hello());
    puppet.say("exit");
    CHECK(::waitpid(puppet.pid(), nullptr, 0) == puppet.pid());
    CHECK(!std::filesystem::exists(file));
  }
  std::filesystem::remove_all(name);
}

TEST_CASE("a client that talks nonsense is refused, and the program does not notice") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 5") == "ok");
  using ckpt::agent::Message;
  for (int round = 0; round < 200; ++round) {
    auto socket = cuda::connect_to_agent(puppet.pid());
    REQUIRE(socket);
    std::string text(round % 90, static_cast<char>(round * 37));
    Message message;
    message.type = static_cast<ckpt::agent::Type>(round % 30);
    if (round % 3 == 0) message.version = round;
    if (round % 5 == 0) message.magic = round;
    message.a = round % 2 == 0 ? UINT64_MAX : 1;
    message.b = UINT64_MAX;
    // A time that is asked for is kept to: not for ever.
    if (message.type == ckpt::agent::Type::kLockApi || message.type == ckpt::agent::Type::kHold) message.a = 1;
    std::string whole(reinterpret_cast<const char*>(&message), sizeof message);
    whole += text;
    if (round % 7 == 0) whole.resize(round % sizeof message);
    (void)!::send(socket->get(), whole.data(), whole.size(), MSG_NOSIGNAL);
    if (round % 4 != 0) {
      pollfd what = {socket->get(), POLLIN, 0};
      ::poll(&what, 1, whole.empty() ? 0 : 2000);
    }
  }
  CHECK(puppet.ask("check 0 5") == "ok");
  auto agent = puppet.agent();
  CHECK(agent->hello().value().api_locked == 0);
}

TEST_CASE("who is not under ckpt run has no agent") {
  CHECK(AgentTarget::connect(::getpid(), 0).error().code == Code::kNotFound);
  CHECK(AgentTarget::connect(0x7ffffff0, 0).error().code == Code::kNotFound);
}

TEST_CASE("a conversation goes on after wake, whether it was held or not") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->wake());
  const uint64_t id = allocation_at(*agent, at).id;
  auto fd = agent->export_allocation(id);
  REQUIRE(fd);
  DONE(agent->release(id));
  DONE(agent->hold(60 * kSecond));
  CHECK(!agent->unlock_api());
  // The agent listens again a moment after it was woken.
  Result<void> woken = agent->wake();
  for (int i = 0; i < 1000 && !woken && woken.error().code == Code::kNotFound; ++i)
    ::usleep(1000), woken = agent->wake();
  DONE(woken);
  DONE(agent->lock_api(kSecond));
  DONE(agent->attach(id, fd->get()));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 5") == "ok");
  CHECK(puppet.ask("check 0 5") == "ok");
}
