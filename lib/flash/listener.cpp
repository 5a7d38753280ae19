#include "lib/flash/listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace ckpt::flash {

Listener::~Listener() {
  if (bound_) ::unlinkat(place_.folder.get(), place_.name.c_str(), 0);
}

Result<void> Listener::open(const std::string& directory, const std::string& socket) {
  CKPT_TRY_ASSIGN(place_, find_socket(directory, socket));
  const std::string lock_name = place_.name + ".lock";
  lock_.reset(::openat(place_.folder.get(), lock_name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock_) return sys_error(place_.shown, "cannot make its lock");
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) return fail(Code::kBusy, directory, "has an agent already");
  ::unlinkat(place_.folder.get(), place_.name.c_str(), 0);  // of one that was killed
  socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = place_.address();
  if (path.size() >= sizeof address.sun_path) return fail(Code::kUsage, place_.shown, "is too long a name");
  path.copy(address.sun_path, path.size());
  if (!socket_ || ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return sys_error(place_.shown, "cannot make the socket");
  bound_ = true;
  if (::fchmodat(place_.folder.get(), place_.name.c_str(), 0600, 0) != 0 || ::listen(socket_.get(), 128) != 0)
    return sys_error(place_.shown, "cannot listen");
  return {};
}

}  // namespace ckpt::flash
