// What waits to be told of a socket: an error that its next call gets, and the queue of errors and of notes about what
// it has sent (MSG_ERRQUEUE). Nothing of it is asked for here, which would take it away from the process.
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>

#include <cstring>

#include "lib/proc/socket_options.h"
#include "lib/state/sockets/capture_internal.h"

namespace ckpt::capture {

using store::Socket;

namespace {

/// What makes the error would add to its queue of errors, too.
bool has_queue(int fd) {
  return int_option(fd, IPPROTO_IP, IP_RECVERR).value_or(0) != 0 ||
         int_option(fd, IPPROTO_IPV6, IPV6_RECVERR).value_or(0) != 0;
}

}  // namespace

std::string take_pending_error(int fd, Socket& socket) {
  if ((poll_socket(fd) & POLLERR) == 0) return "";
  const auto pending = proc::read_pending_errors(fd);
  if (!pending)
    return "a socket with an error that it has not been told yet, or with unread notes about what it has sent "
           "(MSG_ERRQUEUE)";
  if (pending->messages != 0)
    return fmt::format(
        "a socket with {} errors or notes about what it has sent that have not been read yet (MSG_ERRQUEUE)",
        pending->messages);
  const int error = pending->error;
  const bool again = store::can_fail_again(socket, error) && !has_queue(fd);
  if (error != 0 && !again)
    return fmt::format("a socket with an error that it has not been told yet ({})", std::strerror(error));
  socket.error = error;
  return "";
}

}  // namespace ckpt::capture
