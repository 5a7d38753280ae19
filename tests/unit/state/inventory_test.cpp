#include "lib/state/inventory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/sanitized.h"

using namespace ckpt;
using namespace ckpt::capture;

TEST_CASE("inventory: descriptors that become others all the time do not spoil a look at a running process") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int kind = 0;; kind = (kind + 1) % 3) {
      const int fresh = kind == 0 ? ::socket(AF_UNIX, SOCK_STREAM, 0) : kind == 1 ? ::open("/", O_RDONLY) : ::open("/dev/null", O_RDWR);
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
    options.shell_job = true;
    auto found = look_at_running(child, members, options);
    if (!found) ++failed, why = found.error().text();
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_MESSAGE(failed == 0, why);
}
