#include "lib/proc/priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace ckpt::proc {

void be_nice() {
  constexpr int kNice = 3;
  thread_local const int done = ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  (void)done;
}

}  // namespace ckpt::proc
