#include "tests/device/interposer/puppet_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

using namespace ckpt;
using cuda::AgentTarget;

Puppet::Puppet(std::vector<std::string> environment) {
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

Puppet::~Puppet() {
  ::fclose(to_);
  ::fclose(from_);
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  std::filesystem::remove_all(folder_);
}

void Puppet::say(const std::string& line) {
  std::fprintf(to_, "%s\n", line.c_str());
  std::fflush(to_);
}

std::string Puppet::answer() {
  char line[256] = {};
  if (std::fgets(line, sizeof line, from_) == nullptr) return "ended";
  line[std::strcspn(line, "\n")] = 0;
  return line;
}

std::string Puppet::ask(const std::string& line) {
  say(line);
  return answer();
}

uint64_t Puppet::number(const std::string& line) {
  const std::string text = ask(line);
  REQUIRE_MESSAGE(text.starts_with("ok "), line << ": " << text);
  return std::stoull(text.substr(3));
}

std::unique_ptr<AgentTarget> Puppet::agent() {
  auto made = AgentTarget::connect(pid_, 5 * kSecond);
  REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
  return std::move(made).value();
}

std::vector<device::Range> all_owned(AgentTarget& agent) {
  std::vector<device::Range> out;
  auto all = agent.allocations();
  REQUIRE(all);
  for (const device::Allocation& allocation : *all) {
    if (allocation.kind == device::MemoryKind::kOwned) out.push_back(allocation.range());
  }
  return out;
}

device::Allocation allocation_at(AgentTarget& agent, uint64_t address) {
  auto all = agent.allocations();
  REQUIRE(all);
  for (const device::Allocation& a : *all) {
    if (a.address.value == address) return a;
  }
  FAIL("no allocation at that address");
  return {};
}

void stop_and_take(AgentTarget& agent) {
  DONE(agent.lock_api(5 * kSecond));
  DONE(agent.drain(5 * kSecond));
}
