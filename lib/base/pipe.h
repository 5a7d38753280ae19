// A pipe, or a pair of sockets, whose ends close by themselves.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt {

struct PipeEnds {
  UniqueFd read, write;
};

/// Both ends close on exec. `flags`: of pipe2(2), as O_NONBLOCK. Errors, in the name of `subject`: kNoRoom, kIo.
inline Result<PipeEnds> make_pipe(const std::string& subject = {}, int flags = 0) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) return sys_error(subject, "cannot make a pipe");
  return PipeEnds{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// For messages in both directions, whose ends close on exec. Errors: kNoRoom, kIo.
inline Result<std::pair<UniqueFd, UniqueFd>> make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return sys_error("", "cannot make a pair of sockets");
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

}  // namespace ckpt
