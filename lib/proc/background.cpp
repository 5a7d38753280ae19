#include "lib/proc/background.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "lib/base/io.h"

namespace ckpt::proc {

int become_background(const char* name, int channel) {
  ::prctl(PR_SET_NAME, name, 0, 0, 0);
  ::setsid();
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) ::signal(signal, SIG_IGN);
  constexpr int kPlace = STDERR_FILENO + 1;
  if (channel != kPlace) ::dup3(channel, kPlace, O_CLOEXEC);
  io::close_descriptors(kPlace + 1);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
  ::close(null);
  return kPlace;
}

}  // namespace ckpt::proc
