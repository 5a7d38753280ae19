#include "lib/state/inventory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "lib/proc/landlock.h"
#include "lib/state/landlock/capture.h"
#include "tests/support/sanitized.h"

using namespace ckpt;
using namespace ckpt::capture;

TEST_CASE("inventory: whom threads look at out of a domain has ids, no capabilities, and ends with its maker") {
  if (!proc::has_landlock()) {
    MESSAGE("skipped: no Landlock here");
    return;
  }
  std::vector<int> made;
  {
    OutsiderMaker maker;
    std::vector<std::pair<uint32_t, uint32_t>> wanted = {{::getuid(), ::getgid()}};
    if (::geteuid() == 0) wanted.emplace_back(12345, 23456);
    for (const auto& [uid, gid] : wanted) {
      made.push_back(maker.make(uid, gid, false));
      REQUIRE(made.back() > 0);
      auto status = proc::read_status(made.back(), made.back());
      REQUIRE(status);
      for (int i = 0; i < 3; ++i) CHECK(status->uid[i] == uid);
      for (int i = 0; i < 3; ++i) CHECK(status->gid[i] == gid);
      CHECK(status->cap_permitted == 0);
    }
    if (::geteuid() != 0) CHECK(maker.make(12345, 23456, false) == 0);
    while (made.size() < 16) made.push_back(maker.make(::getuid(), ::getgid(), false));
    CHECK(maker.make(::getuid(), ::getgid(), false) == 0);  // so many and no more, and those go on
    for (int pid : made) CHECK(proc::read_status(pid, pid).has_value());
  }
  for (int pid : made) CHECK(!proc::read_status(pid, pid));
}

TEST_CASE("inventory: a thread that may not look out is in a domain where nothing else forbids it") {
  CHECK(is_domains_answer(-EPERM, false));
  CHECK(!is_domains_answer(-EPERM, true));
  for (const int64_t other : {0, 1, 2, -ENOSYS, -ESRCH}) CHECK(!is_domains_answer(other, false));
}

TEST_CASE("inventory: descriptors that become others all the time do not spoil a look at a running process") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int kind = 0;; kind = (kind + 1) % 3) {
      const int fresh = kind == 0   ? ::socket(AF_UNIX, SOCK_STREAM, 0)
                        : kind == 1 ? ::open("/", O_RDONLY)
                                    : ::open("/dev/null", O_RDWR);
      for (int fd = 40; fd < 44; ++fd) ::dup2(fresh, fd);
      ::close(fresh);
      ::usleep(30);
    }
  }
  int failed = 0;
  std::string why;
  for (int i = 0; i < (ckpt::test::kSanitized ? 80 : 400); ++i) {
    std::vector<Member> members;
    InventoryOptions options;
    options.external = {true, state::ExternalPipes::kKeep, {}};
    auto found = look_at_running(child, members, options);
    if (!found) ++failed, why = found.error().text();
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_MESSAGE(failed == 0, why);
}

namespace {

constexpr int kDescriptions = 300, kFirst = 100, kSecond = kFirst + kDescriptions;

/// The number of the second descriptor of the i-th description: every third has one.
int second_of(int i) { return i % 3 == 0 ? kSecond + i * 7 % kDescriptions : -1; }

/// Descriptions of one folder, which only the kernel can tell apart.
void open_many() {
  for (int i = 0; i < kDescriptions; ++i) {
    const int fresh = ::open("/", O_RDONLY);
    ::dup2(fresh, kFirst + i);
    if (second_of(i) >= 0) ::dup2(fresh, second_of(i));
    ::close(fresh);
  }
}

/// Which descriptors share a description, each with the lowest number of its own.
std::map<int, int> shared_with(const Inventory& found) {
  std::map<int, int> out;
  for (const store::Descriptor& descriptor : found.image.descriptors) {
    int lowest = kSecond * 2;
    for (const store::FdSlot& slot : descriptor.fds) lowest = std::min(lowest, slot.fd);
    for (const store::FdSlot& slot : descriptor.fds) out[slot.fd] = lowest;
  }
  return out;
}

}  // namespace

TEST_CASE("inventory: many descriptions of one file are told apart, those with two descriptors too") {
  int ready[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_many();
    ::close(ready[0]);
    ::close(ready[1]);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char none = 0;
  CHECK(::read(ready[0], &none, 1) == 0);
  ::close(ready[0]);
  std::vector<Member> members;
  InventoryOptions options;
  options.external = {true, state::ExternalPipes::kKeep, {}};
  auto running = look_at_running(child, members, options);
  REQUIRE(running);
  options.frozen = true, options.earlier = &*running;
  auto again = take_inventory(members, options);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(again);
  for (const Inventory* found : {&*running, &*again}) {
    const std::map<int, int> shared = shared_with(*found);
    for (int i = 0; i < kDescriptions; ++i) {
      REQUIRE(shared.count(kFirst + i) == 1);
      CHECK(shared.at(kFirst + i) == kFirst + i);
      if (second_of(i) >= 0) CHECK(shared.at(second_of(i)) == kFirst + i);
    }
  }
}
