// The options of sockets that are carried over: what getsockopt can read without changing anything and setsockopt can
// write. Names are those of the C headers.
#pragma once

#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

struct SocketOptionKind {
  const char* name;
  int level;
  int option;
  /// Set once the socket is bound, connected and filled: it would change or hinder that.
  bool late = false;
};

/// Those that may apply to such a socket, in the order in which they are to be set. One that this kernel does not know
/// fails to be read.
std::vector<SocketOptionKind> socket_options(int family, int type, int protocol);

/// nullptr: no such option.
const SocketOptionKind* find_socket_option(std::string_view name);

/// What no call tells of a socket, as the kernel's own memory has it.
struct HiddenOptions {
  bool shared_out = false;  ///< a program shares out what comes among the sockets of its port (SO_ATTACH_REUSEPORT_*)
  bool zero_copied = false; ///< it has sent with MSG_ZEROCOPY: the sends are counted, and completions tell by number
  uint32_t stamp_key = 0;   ///< the number that the next time stamp of what it sends has (SOF_TIMESTAMPING_OPT_ID)
};
/// Of a descriptor of ckpt's. kPermission, kUnsupported: see KernelMemory.
Result<HiddenOptions> read_hidden_options(int fd);

/// SO_BUSY_POLL_BUDGET, in packets; 0: it has not been set. As read_hidden_options.
Result<uint16_t> read_busy_poll_budget(int fd);

/// What a socket has not been told yet. Any call that tells it takes it away: SO_ERROR, and MSG_ERRQUEUE with MSG_PEEK.
struct PendingErrors {
  int error = 0;          ///< its next call fails with this errno
  uint32_t messages = 0;  ///< in its queue of errors and of notes about what it has sent
};
/// As read_hidden_options.
Result<PendingErrors> read_pending_errors(int fd);

}  // namespace ckpt::proc
