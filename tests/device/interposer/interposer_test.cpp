// Programs under `ckpt run` on the stand-in driver, and the agent in them spoken to from here.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "plugins/cuda/agent_address.h"
#include "plugins/cuda/agent_client.h"
#include "tests/device/programs/kernels.h"

using namespace ckpt;
using cuda::AgentTarget;

namespace {

constexpr uint64_t kSecond = 1'000'000, kMiB = 1 << 20;

/// puppet.cpp under `ckpt run`.
class Puppet {
 public:
  explicit Puppet(std::vector<std::string> environment = {}) {
    int in[2], out[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    folder_ = std::filesystem::temp_directory_path() / ("ckpt-puppet-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::setenv("CKPT_CUDA_DRIVER", CKPT_STANDIN, 1);
      for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
      ::execl(CKPT_BINARY, CKPT_BINARY, "run", "--", CKPT_PUPPET, folder_.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
    REQUIRE(answer() == "ok");
  }
  ~Puppet() {
    ::fclose(to_);
    ::fclose(from_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  Puppet(const Puppet&) = delete;

  int pid() const { return pid_; }
  void say(const std::string& line) {
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
  }
  std::string answer() {
    char line[256] = {};
    if (std::fgets(line, sizeof line, from_) == nullptr) return "ended";
    line[std::strcspn(line, "\n")] = 0;
    return line;
  }
  std::string ask(const std::string& line) {
    say(line);
    return answer();
  }
  /// The number behind "ok".
  uint64_t number(const std::string& line) {
    const std::string text = ask(line);
    REQUIRE_MESSAGE(text.starts_with("ok "), line << ": " << text);
    return std::stoull(text.substr(3));
  }
  std::unique_ptr<AgentTarget> agent() {
    auto made = AgentTarget::connect(pid_, 5 * kSecond);
    REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    return std::move(made).value();
  }

 private:
  std::filesystem::path folder_;
  int pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

#define DONE(expression)                                                      \
  do {                                                                        \
    auto done_ = (expression);                                                \
    REQUIRE_MESSAGE(done_, #expression << ": " << (done_ ? "" : done_.error().text())); \
  } while (0)

device::Allocation allocation_at(AgentTarget& agent, uint64_t address) {
  auto all = agent.allocations();
  REQUIRE(all);
  for (const device::Allocation& a : *all) {
    if (a.address.value == address) return a;
  }
  FAIL("no allocation at that address");
  return {};
}

/// Memory of the stand-in is a memfd: what the target wrote is read here.
struct View {
  explicit View(const UniqueFd& fd) {
    struct stat about;
    REQUIRE(::fstat(fd.get(), &about) == 0);
    size = about.st_size;
    data = static_cast<uint64_t*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    REQUIRE(data != MAP_FAILED);
  }
  ~View() { ::munmap(data, size); }
  View(const View&) = delete;
  bool holds(uint64_t seed, size_t bytes, size_t from = 0) const {
    for (size_t i = 0; i < bytes / 8; ++i) {
      if (data[from / 8 + i] != word_of(seed, i)) return false;
    }
    return true;
  }
  uint64_t* data;
  size_t size;
};

void stop_and_take(AgentTarget& agent) {
  DONE(agent.close_gate(5 * kSecond));
  DONE(agent.drain(5 * kSecond));
}

}  // namespace

TEST_CASE("every allocation is listed, large device memory as owned") {
  Puppet puppet;
  const uint64_t large = puppet.number("alloc 5000000"), small = puppet.number("alloc 1000"), host = puppet.number("host 8192");
  const uint64_t managed = puppet.number("managed 65536"), pool = puppet.number("pool 4194304");
  CHECK(puppet.number("pitch 1000 4000") == 1024);
  auto agent = puppet.agent();
  CHECK(allocation_at(*agent, large).kind == device::MemoryKind::kOwned);
  CHECK(allocation_at(*agent, large).size == 6 * kMiB);
  CHECK(allocation_at(*agent, small).kind == device::MemoryKind::kNative);
  CHECK(allocation_at(*agent, small).size == 1000);
  CHECK(allocation_at(*agent, host).kind == device::MemoryKind::kPinned);
  CHECK(allocation_at(*agent, managed).kind == device::MemoryKind::kNative);
  CHECK(allocation_at(*agent, pool).kind == device::MemoryKind::kNative);
  auto listing = agent->listing();
  REQUIRE(listing);
  for (const ckpt::agent::AllocationReply& entry : *listing) {
    if (entry.address == managed) CHECK(entry.kind == ckpt::agent::Kind::kManaged);
    if (entry.address == large) CHECK(entry.asked == 5000000);
  }
  CHECK(puppet.ask("free 0") == "ok");
  CHECK(puppet.ask("free-twice 0") == "ok");
  auto after = agent->allocations();
  REQUIRE(after);
  for (const device::Allocation& a : *after) CHECK(a.address.value != large);
  auto uuid = agent->device_uuid(0);
  REQUIRE(uuid);
  CHECK(uuid->size() == 40);
}

TEST_CASE("queries about owned memory answer as for the driver's") {
  Puppet puppet;
  puppet.number("alloc 5000000");
  CHECK(puppet.number("attributes 0") == 5000000);
}

TEST_CASE("owned memory is exported and read from another process") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 7") == "ok");
  auto agent = puppet.agent();
  auto fd = agent->export_allocation(allocation_at(*agent, at).id);
  REQUIRE(fd);
  CHECK(View(*fd).holds(7, 4 * kMiB));
  auto none = agent->export_allocation(999999);
  REQUIRE(!none);
  CHECK(none.error().code == Code::kNotFound);
  auto foreign = agent->export_allocation(allocation_at(*agent, puppet.number("alloc 100")).id);
  REQUIRE(!foreign);
  CHECK(foreign.error().code == Code::kUnsupported);
}

TEST_CASE("nothing passes a closed gate, and all of it does afterwards") {
  Puppet puppet;
  bool membarrier = true;
  SUBCASE("with membarrier") {}
  SUBCASE("without") { membarrier = false; }
  if (!membarrier && puppet.ask("forbid-membarrier") != "ok") return;
  CHECK(puppet.ask("hammer 4") == "ok");
  auto agent = puppet.agent();
  auto all = agent->allocations();
  REQUIRE(all);
  uint64_t counters = 0;
  for (const device::Allocation& a : *all) {
    if (a.kind == device::MemoryKind::kOwned) counters = a.id;
  }
  auto fd = agent->export_allocation(counters);
  REQUIRE(fd);
  const View view(*fd);
  auto sum = [&] {
    uint64_t total = 0;
    for (int i = 0; i < 4; ++i) total += view.data[8 * i];
    return total;
  };
  uint64_t before = 0;
  for (int round = 0; round < 10; ++round) {
    stop_and_take(*agent);
    const uint64_t stopped = sum();
    CHECK(stopped >= before);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(sum() == stopped);
    before = stopped;
    DONE(agent->open_gate());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(puppet.number("halt") > before);
}

TEST_CASE("memory is taken away and comes back at its address, from where it was parked") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 8388608");
  CHECK(puppet.ask("write 0 11") == "ok");
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, at).id;
  auto open_gate_only = agent->release(id);
  CHECK(!open_gate_only);
  stop_and_take(*agent);
  auto parked = agent->export_allocation(id);
  REQUIRE(parked);
  DONE(agent->release(id));
  CHECK(allocation_at(*agent, at).released);
  auto too_early = agent->open_gate();
  REQUIRE(!too_early);
  CHECK(too_early.error().code == Code::kBusy);
  CHECK(agent->export_allocation(id).error().code == Code::kBusy);
  DONE(agent->forget());
  DONE(agent->attach(id, parked->get()));
  CHECK(!allocation_at(*agent, at).released);
  DONE(agent->open_gate());
  CHECK(puppet.ask("check 0 11") == "ok");

  // Fresh memory, filled from here.
  stop_and_take(*agent);
  DONE(agent->release(id));
  DONE(agent->forget());
  DONE(agent->attach(id, -1));
  auto fresh = agent->export_allocation(id);
  REQUIRE(fresh);
  {
    const View view(*fresh);
    for (size_t i = 0; i < kMiB; ++i) view.data[i] = word_of(12, i);
  }
  DONE(agent->open_gate());
  CHECK(puppet.ask("check 0 12") == "ok");
}

TEST_CASE("memory that the program maps itself is owned piece by piece, its handles stay good") {
  Puppet puppet;
  const uint64_t at = puppet.number("segment 4 4194304");
  CHECK(puppet.ask("write 0 81") == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  std::vector<std::pair<uint64_t, UniqueFd>> parked;
  for (uint64_t piece = 0; piece < 4; ++piece) {
    const device::Allocation a = allocation_at(*agent, at + piece * 4 * kMiB);
    CHECK(a.kind == device::MemoryKind::kOwned);
    CHECK(a.size == 4 * kMiB);
    auto fd = agent->export_allocation(a.id);
    REQUIRE(fd);
    parked.emplace_back(a.id, std::move(*fd));
    DONE(agent->release(a.id));
  }
  DONE(agent->forget());
  for (const auto& [id, fd] : parked) DONE(agent->attach(id, fd.get()));
  DONE(agent->open_gate());
  CHECK(puppet.ask("check 0 81") == "ok");
  CHECK(puppet.ask("write 0 82") == "ok");
  CHECK(puppet.ask("check 0 82") == "ok");
  // A pointer to one piece stands for its neighbours: a kernel takes them for one.
  stop_and_take(*agent);
  DONE(agent->begin_cow(64 * kMiB));
  DONE(agent->open_gate());
  CHECK(puppet.ask("write 0 83") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->saved.size() == 4);
  DONE(agent->end_cow());
  CHECK(puppet.ask("share 2") == "ok");
  CHECK(allocation_at(*agent, at + 8 * kMiB).kind == device::MemoryKind::kNative);
  CHECK(allocation_at(*agent, at + 4 * kMiB).kind == device::MemoryKind::kOwned);
  CHECK(puppet.ask("end-segment 0") == "ok");
  auto after = agent->allocations();
  REQUIRE(after);
  for (const device::Allocation& a : *after) CHECK((a.address.value < at || a.address.value >= at + 16 * kMiB));
}

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
      if (step >= 1) done = done && a.close_gate(5 * kSecond);
      if (step >= 2) done = done && a.drain(5 * kSecond);
      if (step == 3) done = done && a.begin_cow(64 * kMiB) && a.open_gate();
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
    CHECK(about->gate_closed == 0);
    CHECK(about->released == 0);
  }
}

TEST_CASE("memory that is nowhere keeps the gate closed until a client brings it") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 31") == "ok");
  UniqueFd parked;
  uint64_t id = 0;
  {
    auto agent = puppet.agent();
    id = allocation_at(*agent, at).id;
    stop_and_take(*agent);
    auto fd = agent->export_allocation(id);
    REQUIRE(fd);
    parked = std::move(*fd);
    DONE(agent->release(id));
    DONE(agent->forget());
  }
  puppet.say("check 0 31");
  auto agent = puppet.agent();
  auto about = agent->hello();
  REQUIRE(about);
  CHECK(about->gate_closed == 1);
  CHECK(about->released == 1);
  DONE(agent->attach(id, parked.get()));
  DONE(agent->open_gate());
  CHECK(puppet.answer() == "ok");
}

TEST_CASE("a held target has no socket, and listens again when its lease is up") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 41") == "ok");
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, at).id;
  stop_and_take(*agent);
  auto parked = agent->export_allocation(id);
  REQUIRE(parked);
  DONE(agent->release(id));
  DONE(agent->hold(kSecond / 2));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(puppet.pid()) + "/fd")) {
    std::error_code error;
    CHECK(std::filesystem::read_symlink(entry.path(), error).string().find("socket:") == std::string::npos);
  }
  CHECK(agent->hello().error().code == Code::kNotFound);
  CHECK(AgentTarget::connect(puppet.pid(), 0).error().code == Code::kNotFound);
  Result<std::unique_ptr<AgentTarget>> again = fail(Code::kBug, "", "");
  for (int i = 0; i < 500 && !again; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    again = AgentTarget::connect(puppet.pid(), kSecond);
  }
  REQUIRE(again);
  CHECK((*again)->hello().value().gate_closed == 1);
  DONE((*again)->attach(id, parked->get()));
  DONE((*again)->open_gate());
  CHECK(puppet.ask("check 0 41") == "ok");
}

TEST_CASE("a kernel without end: draining gives up in time, the gate opens") {
  Puppet puppet;
  CHECK(puppet.ask("spin") == "ok");
  auto agent = puppet.agent();
  DONE(agent->close_gate(5 * kSecond));
  auto drained = agent->drain(kSecond / 10);
  REQUIRE(!drained);
  CHECK(drained.error().code == Code::kBusy);
  DONE(agent->open_gate());
  CHECK(puppet.ask("unspin") == "ok");
  stop_and_take(*agent);
  DONE(agent->open_gate());
}

TEST_CASE("a thread that waits inside: closing gives up in time, the gate opens") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(at != 0);
  CHECK(puppet.ask("spin") == "ok");
  puppet.say("free 0");  // waits for the kernel, in the gate
  auto agent = puppet.agent();
  Result<void> closed;
  for (int i = 0; i < 100; ++i) {
    closed = agent->close_gate(kSecond / 10);
    if (!closed) break;
    DONE(agent->open_gate());
  }
  REQUIRE(!closed);
  CHECK(closed.error().code == Code::kBusy);
  CHECK(agent->hello().value().gate_closed == 0);
}

TEST_CASE("a capture goes on undisturbed: the gate closes when it has ended") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("graph 0") == "ok");
  CHECK(puppet.ask("begin-capture") == "ok");
  auto agent = puppet.agent();
  auto closed = agent->close_gate(kSecond / 10);
  REQUIRE(!closed);
  CHECK(closed.error().code == Code::kBusy);
  CHECK(agent->hello().value().captures == 1);
  CHECK(puppet.ask("end-capture") == "ok");
  stop_and_take(*agent);
  DONE(agent->open_gate());
  CHECK(puppet.ask("graph 0") == "ok");
}

TEST_CASE("copy-on-write: bytes are set aside before a launch, a fill or a free can change them") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304"), b = puppet.number("alloc 4194304"), c = puppet.number("alloc 4194304");
  for (int i = 0; i < 3; ++i) CHECK(puppet.ask("write " + std::to_string(i) + " 5" + std::to_string(i)) == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_cow(256 * kMiB));
  DONE(agent->open_gate());
  CHECK(puppet.ask("write 0 99") == "ok");
  CHECK(puppet.ask("fill 1 131072 100") == "ok");
  CHECK(puppet.ask("free 2") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->missed.empty());
  auto holds = [&](uint64_t address, uint64_t size, uint64_t seed, uint64_t first) {
    for (const device::SavedRange& saved : table->saved) {
      if (saved.original.start.value != address || saved.original.size != size) continue;
      auto fd = agent->export_saved(saved.buffer);
      REQUIRE(fd);
      const View view(*fd);
      for (size_t i = 0; i < size / 8; ++i) {
        if (view.data[saved.offset / 8 + i] != word_of(seed, first / 8 + i)) return false;
      }
      return true;
    }
    return false;
  };
  CHECK(holds(a, 4 * kMiB, 50, 0));
  CHECK(holds(b + 131072, 65536, 51, 131072));
  CHECK(holds(c, 4 * kMiB, 52, 0));
  DONE(agent->end_cow());
  CHECK(puppet.ask("check 0 99") == "ok");
}

TEST_CASE("copy-on-write: what does not fit in the budget is told, and the program goes on") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304"), b = puppet.number("alloc 4194304");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_cow(4 * kMiB));
  DONE(agent->open_gate());
  CHECK(puppet.ask("write 0 1") == "ok");
  CHECK(puppet.ask("write 1 1") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  REQUIRE(table->saved.size() == 1);
  CHECK(table->saved[0].original.start.value == a);
  REQUIRE(table->missed.size() == 1);
  CHECK(table->missed[0] == device::Range{{b}, 4 * kMiB});
}

TEST_CASE("a call that needs memory that is not filled waits for it; others do not") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304"), b = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 1 3") == "ok");
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, a).id;
  CHECK(b != a);
  stop_and_take(*agent);
  DONE(agent->begin_fill({id}));
  auto fd = agent->export_allocation(id);
  REQUIRE(fd);
  DONE(agent->open_gate());
  CHECK(puppet.ask("check 1 3") == "ok");
  CHECK(!agent->next_demand(0).value());
  puppet.say("check 0 61");
  auto demand = agent->next_demand(10 * kSecond);
  REQUIRE(demand);
  REQUIRE(*demand);
  CHECK(**demand == std::vector<uint64_t>{id});
  // The waiting call is not in the way of the gate.
  stop_and_take(*agent);
  {
    const View view(*fd);
    for (size_t i = 0; i < 4 * kMiB / 8; ++i) view.data[i] = word_of(61, i);
  }
  DONE(agent->filled(id));
  DONE(agent->open_gate());
  CHECK(puppet.answer() == "ok");
}

TEST_CASE("launches and fills are written down, and run again") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304");
  puppet.number("alloc 4194304");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_recording(100));
  DONE(agent->open_gate());
  CHECK(puppet.ask("write 0 71") == "ok");
  CHECK(puppet.ask("fill 1 0 4096") == "ok");
  stop_and_take(*agent);
  auto calls = agent->recorded();
  REQUIRE(calls);
  REQUIRE(calls->size() == 2);
  CHECK((*calls)[0].writes == std::vector<device::Range>{{{a}, 4 * kMiB}});
  CHECK((*calls)[0].replayable);
  CHECK((*calls)[1].writes[0].size == 4096);
  CHECK((*calls)[1].reads.empty());
  DONE(agent->end_recording());
  DONE(agent->open_gate());
  CHECK(puppet.ask("write 0 72") == "ok");
  stop_and_take(*agent);
  DONE(agent->replay((*calls)[0]));
  DONE(agent->drain(5 * kSecond));
  device::Launch wrong = (*calls)[0];
  wrong.record.resize(wrong.record.size() - 1);
  CHECK(!agent->replay(wrong));
  DONE(agent->open_gate());
  CHECK(puppet.ask("check 0 71") == "ok");
}

TEST_CASE("forks, and contexts that end with all their memory") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 5") == "ok");
  CHECK(puppet.ask("fork") == "ok");
  CHECK(puppet.ask("check 0 5") == "ok");
  CHECK(puppet.ask("reset") == "ok");
  auto agent = puppet.agent();
  auto all = agent->allocations();
  REQUIRE(all);
  for (const device::Allocation& a : *all) CHECK(a.kind != device::MemoryKind::kOwned);
}

TEST_CASE("a device without room: the program sees what the driver says") {
  Puppet puppet({"CKPT_STANDIN_CAPACITY=67108864"});
  CHECK(puppet.ask("alloc 1073741824").find(" 2") != std::string::npos);
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 5") == "ok");
  CHECK(puppet.ask("check 0 5") == "ok");
}

TEST_CASE("sockets in a folder of the user's own") {
  char folder[] = "/tmp/ckpt-run-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  {
    Puppet puppet({std::string("CKPT_RUN_DIR=") + folder});
    auto agent = puppet.agent();
    CHECK(agent->hello().value().pid == puppet.pid());
    CHECK(std::filesystem::exists(std::string(folder) + "/agent-" + std::to_string(puppet.pid())));
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("threads that come and go while the gate closes and opens") {
  Puppet puppet;
  auto agent = puppet.agent();
  puppet.say("churn 300");
  for (int i = 0; i < 50; ++i) {
    stop_and_take(*agent);
    DONE(agent->open_gate());
  }
  CHECK(puppet.answer() == "ok");
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
    if (message.type == ckpt::agent::Type::kCloseGate || message.type == ckpt::agent::Type::kHold) message.a = 1;
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
  CHECK(agent->hello().value().gate_closed == 0);
}

TEST_CASE("who is not under ckpt run has no agent") {
  CHECK(AgentTarget::connect(::getpid(), 0).error().code == Code::kNotFound);
  CHECK(AgentTarget::connect(0x7ffffff0, 0).error().code == Code::kNotFound);
}
