// One message at a time over the agent's socket, from either side. Everything received is checked for size and shape;
// what it means is checked by whoever asked for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/flash/protocol.h"

namespace ckpt::flash {

constexpr size_t kMostReplyText = 48 << 10;

struct Incoming {
  Request request;
  std::string text;
  std::vector<UniqueFd> fds;
};

/// kCorrupt: no request of this protocol. kUnsupported: of another version. Nothing: there is none yet. kNotFound: the
/// other side has closed.
Result<std::optional<Incoming>> receive_request(int socket);
/// False: it cannot be sent now, or ever.
bool send_reply(int socket, Reply reply, const std::string& text, int fd);

struct Answer {
  Reply reply;
  std::string text;
  UniqueFd fd;
};

/// Sends and waits for the reply. `timeout_ms` -1: as long as it takes. kBusy: it did not come in time. kIo: the agent
/// is gone.
Result<Answer> ask(int socket, Request request, const std::string& text, int fd, int timeout_ms);

/// A stranger's user; the agent and its trainers are of one user, or root.
bool is_trusted_peer(int socket, int* pid);

}  // namespace ckpt::flash
