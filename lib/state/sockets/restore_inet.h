// Internet sockets: names, and packets made up as if they came from the network.
#pragma once

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/state/sockets/record.h"

namespace ckpt::restore {

Result<void> bind_inet(int fd, const store::Socket& socket);

/// Puts a datagram into the queue of a UDP socket with the sender it had: a raw packet on the loopback interface. Needs
/// CAP_NET_RAW. False: it did not arrive: a packet filter may have dropped it, or it is larger than the loopback
/// interface takes.
Result<bool> inject_datagram(int fd, const store::Socket& socket, const store::SocketMessage& message, ByteSpan bytes);

/// Has the next call of a connected UDP socket fail with ECONNREFUSED: an ICMP message, as inject_datagram. False: it
/// did not arrive.
Result<bool> inject_refusal(int fd, const store::Socket& socket);

/// A TCP segment without data to `local`, as if from `remote`.
struct Segment {
  uint32_t sequence = 0, acknowledgement = 0;
  bool fin = false, reset = false;
};
Result<void> inject_segment(const std::vector<uint8_t>& local, const std::vector<uint8_t>& remote,
                            const Segment& segment);

}  // namespace ckpt::restore
