#include "lib/proc/priority.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>

#include "lib/base/unique_fd.h"

namespace ckpt::proc {

namespace {

/// Without an effect where the kernel has no autogroups; lowering it again needs no privilege.
void set_session_niceness(const char* value) {
  UniqueFd fd(::open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC));
  if (fd) (void)!::write(fd.get(), value, std::strlen(value));
}

}  // namespace

StandBack::StandBack() {
  if (::getsid(0) == ::getpid()) set_session_niceness("10");
  else active_ = false;  // it would be the session of somebody else, too
}

void StandBack::end() {
  if (active_) set_session_niceness("0");
  active_ = false;
}

void be_nice() {
  constexpr int kNice = 10;
  thread_local const int done = ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  (void)done;
}

}  // namespace ckpt::proc
