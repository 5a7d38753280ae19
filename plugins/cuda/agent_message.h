// The messages of agent_protocol.h on a socket, for both ends of it. Built into ckpt and into the preloaded library.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "plugins/cuda/agent_protocol.h"

namespace ckpt::agent {

struct Received {
  Message message;
  std::string payload;
  int fd = -1;         ///< the receiver's to close
  bool whole = false;  ///< else too short, or cut off on the way: `message` and `payload` mean nothing
};

/// One sendmsg(2), as it answers, errno included. fd -1: none goes along.
ssize_t send_message(int socket, const Message& message, std::string_view payload, int fd);
/// One recvmsg(2), as it answers, errno included. Descriptors beyond the first are closed: nobody asked for them.
ssize_t receive_message(int socket, Received* out);

}  // namespace ckpt::agent
