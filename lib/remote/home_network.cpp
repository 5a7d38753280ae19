#include "lib/remote/home_network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "lib/base/virtual_file.h"

namespace ckpt::remote {

namespace {

constexpr const char* kOwn = "/proc/thread-self/ns/net";
constexpr const char* kSubject = "the network namespace";

UniqueFd& home() {
  static UniqueFd out;
  return out;
}

Result<UniqueFd> open_own() {
  UniqueFd out(::open(kOwn, O_RDONLY | O_CLOEXEC));
  if (!out) return sys_error(kSubject, "cannot be opened");
  return out;
}

bool same(int one, int other) {
  struct stat a {}, b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

Result<void> remember_network() {
  auto own = open_own();
  if (!own && own.error().code == Code::kNotFound) return {};  // a kernel that has one network for all
  CKPT_TRY_ASSIGN(home(), std::move(own));
  io::set_needed_descriptor(home().get());
  return {};
}

HomeNetwork::HomeNetwork() {
  if (!home()) return;
  auto own = open_own();
  if (!own) {
    there_ = std::move(own).error();
    return;
  }
  if (same(own->get(), home().get())) return;
  if (::setns(home().get(), CLONE_NEWNET) != 0)
    there_ = sys_error(kSubject, "of whoever called ckpt cannot be entered");
  else
    before_ = std::move(*own);
}

HomeNetwork::~HomeNetwork() {
  if (!before_ || ::setns(before_.get(), CLONE_NEWNET) == 0) return;
  // On in the wrong one it would take the sockets of other processes for those of the target.
  std::perror("ckpt: a network namespace that was left for a request cannot be entered again");
  std::abort();
}

}  // namespace ckpt::remote
