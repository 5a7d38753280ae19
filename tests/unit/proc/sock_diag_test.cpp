#include "lib/proc/sock_diag.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "lib/base/unique_fd.h"

using namespace ckpt;

TEST_CASE("sock_diag: one unix socket is told of by its inode as the list tells of it") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd one(ends[0]), other(ends[1]);
  struct stat st {
  }, peer{};
  REQUIRE(::fstat(one.get(), &st) == 0);
  REQUIRE(::fstat(other.get(), &peer) == 0);
  const auto found = proc::read_unix_socket(st.st_ino);
  if (!found && found.error().code == Code::kUnsupported) {
    MESSAGE("skipped: no unix_diag");
    return;
  }
  REQUIRE(found);
  CHECK(found->inode == st.st_ino);
  CHECK(found->type == SOCK_STREAM);
  CHECK(found->has_peer);
  CHECK(found->peer == peer.st_ino);
  CHECK_FALSE(proc::read_unix_socket(1));
}
