// What waits to be told of a socket: an error that its next call gets, and the queue of errors and of notes about what
// it has sent (MSG_ERRQUEUE). Nothing of it is asked for here, which would take it away from the process.
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>

#include <cerrno>
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

PendingError take_pending_error(int fd, Socket& socket) {
  if ((poll_socket(fd) & POLLERR) == 0) return {};
  const bool datagrams = socket.type == SOCK_DGRAM, ended = socket.state == store::SocketState::kClosed;
  const auto pending = proc::read_pending_errors(fd);
  if (!pending) {
    const char* what =
        "a socket with an error that it has not been told yet, or with unread notes about what it has sent "
        "(MSG_ERRQUEUE)";
    return datagrams || ended ? PendingError{"", std::string(what) + ", which is lost"} : PendingError{what, ""};
  }
  const int error = pending->error;
  if (pending->messages != 0) {
    std::string what =
        fmt::format("a socket with {} errors or notes about what it has sent, not read yet (MSG_ERRQUEUE)",
                    pending->messages);
    // Of what the network tells of datagrams: its program has got the error, and does not read this.
    return datagrams && error == 0 ? PendingError{"", what + ", which are lost"} : PendingError{what, ""};
  }
  const bool quiet = !has_queue(fd);
  if (error == 0 || (quiet && store::can_fail_again(socket, error))) return socket.error = error, PendingError();
  std::string what = fmt::format("a socket with an error that it has not been told yet ({})", std::strerror(error));
  if (!quiet || error == ECONNREFUSED || !store::can_fail_again(socket, ECONNRESET)) return {what, ""};
  // A program that does not look at its connection would never let go of it.
  socket.error = ECONNRESET;
  return {"", what + fmt::format(": it will be told \"{}\"", std::strerror(ECONNRESET))};
}

}  // namespace ckpt::capture
