#include "lib/proc/landlock.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "lib/proc/userfault.h"
#include "lib/proc/waiting_child.h"

using namespace ckpt;

namespace {

Result<bool> look(int pid) {
  auto pidfd = proc::open_pidfd(pid);
  REQUIRE(pidfd);
  return proc::is_in_landlock_domain(pid, pidfd->get());
}

}  // namespace

TEST_CASE("landlock: the kernel's memory shows who is in a domain, and who is not") {
  if (!proc::has_landlock()) {
    MESSAGE("skipped: no Landlock here");
    return;
  }
  auto inside = proc::WaitingChild::start(proc::enter_landlock_domain);
  auto outside = proc::WaitingChild::start([] { return true; });
  REQUIRE(inside);
  REQUIRE(outside);
  auto found = look(inside->pid());
  if (!found && (found.error().code == Code::kPermission || found.error().code == Code::kUnsupported)) {
    MESSAGE("skipped: " << found.error().text());
    return;
  }
  REQUIRE(found);
  CHECK(*found);
  for (int pid : {outside->pid(), ::getpid()}) {
    found = look(pid);
    REQUIRE(found);
    CHECK(!*found);
  }
}

TEST_CASE("landlock: a child that cannot become what it should is no child") {
  auto child = proc::WaitingChild::start([] { return false; });
  REQUIRE(!child);
  CHECK(child.error().code == Code::kPermission);
}

TEST_CASE("landlock: a child that works ends with its work") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const int told = ends[1];
  auto child = proc::WaitingChild::start([] { return true; }, [told] { (void)!::write(told, "x", 1); });
  REQUIRE(child);
  child->join();
  char byte = 0;
  CHECK(::read(ends[0], &byte, 1) == 1);
  CHECK(byte == 'x');
  ::close(ends[0]), ::close(ends[1]);
}
