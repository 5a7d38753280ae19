// Messages with descriptors on unix sockets (SCM_RIGHTS).
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/unique_fd.h"

namespace ckpt {

constexpr size_t kMostFdsOfMessage = 8;

/// One message. As sendmsg(2) answers, but for EINTR: then it is tried again. No more than kMostFdsOfMessage
/// descriptors.
ssize_t send_with_fds(int socket, ByteSpan data, std::span<const int> fds);
/// One message, of which `data` takes the beginning; the descriptors that came with it are in `fds` afterwards. As
/// recvmsg(2) answers, but for EINTR.
ssize_t receive_with_fds(int socket, MutableByteSpan data, std::vector<UniqueFd>& fds);

}  // namespace ckpt
