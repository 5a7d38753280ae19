// Reading the queue of a live socket without taking anything out.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <optional>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/sockets/option_guard.h"

namespace ckpt::capture {

/// Sets an integer option for as long as it lives, then puts back what it was; if ckpt dies meanwhile, the guard does.
class BorrowedOption {
 public:
  /// An option that the socket does not have is left alone.
  static Result<BorrowedOption> set(OptionGuard& guard, int fd, int level, int option, int value);
  BorrowedOption(BorrowedOption&& other) noexcept = default;
  BorrowedOption& operator=(BorrowedOption&&) = delete;
  ~BorrowedOption();

 private:
  struct Borrowed {
    OptionGuard* guard;
    size_t slot;
    int fd, level, option, before;
  };
  BorrowedOption() = default;
  std::unique_ptr<Borrowed> borrowed_;  ///< nullptr: nothing to put back
};

/// So that MSG_PEEK shows a queue from its front, and moves nothing: SO_PEEK_OFF, which TCP obeys since Linux 6.10.
Result<BorrowedOption> borrow_no_peek_offset(OptionGuard& guard, int fd);

/// What one recvmsg shows.
struct PeekedMessage {
  size_t size = 0;         ///< bytes put into the buffer
  bool truncated = false;  ///< the datagram is longer than the buffer
  std::vector<uint8_t> from;
  std::vector<uint8_t> to;  ///< UDP with IP_PKTINFO or IPV6_RECVPKTINFO: its destination, the port not filled in
  size_t part_size = 0;  ///< UDP_GRO: it is several datagrams of this size, the last one may be shorter; 0: it is one
  std::optional<ucred> credentials;
  std::vector<UniqueFd> rights;
};

/// MSG_PEEK at `offset` bytes from the front (SO_PEEK_OFF, which the caller has borrowed). Nothing: the queue holds no
/// more.
Result<std::optional<PeekedMessage>> peek_at(int fd, int offset, MutableByteSpan buffer);

}  // namespace ckpt::capture
