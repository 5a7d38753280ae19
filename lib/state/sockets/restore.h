// Sockets made in ckpt, before the processes of the tree exist: they get them by fork. Needs, for what the records say,
// CAP_CHECKPOINT_RESTORE (numbers in peer credentials), CAP_NET_ADMIN (TCP connections, buffer sizes), CAP_SYS_CHROOT
// (names whose file is gone).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/reasons.h"
#include "lib/state/run_as.h"
#include "lib/state/sockets/record.h"

namespace ckpt::restore {

struct SocketSources {
  /// The bytes of content_offset and content_size; not called for a size of 0.
  std::function<Result<std::vector<std::byte>>(const store::Socket&)> read_content;
  /// The descriptor in ckpt of an open file description that is no socket, by its index; -1: there is none.
  std::function<int(int index)> descriptor;
  /// Of a process of the tree that is this user for file systems; empty, and for others: the user alone.
  std::function<std::optional<Rights>(uint32_t uid)> rights_of_user;
};

/// The sockets of a tree. TCP connections are in repair mode until `release`: they say nothing to their peers, and
/// closing them says nothing either, so that a restore that fails has harmed no connection.
class Sockets {
 public:
  /// Parallel to the records; empty where a reason was given. The status flags (O_NONBLOCK, O_ASYNC) are the caller's
  /// job: set them once everything here is done.
  std::vector<UniqueFd> fds;

  /// Connections go on: repair mode ends, what was never sent is sent, FINs follow. After the packet filter of the dump
  /// has been removed, just before the processes run; needs `fds` (duplicates do, if the caller has moved them).
  Result<void> release(ProgressSink& notes);

 private:
  friend class InetBuilder;
  struct Connection {
    size_t index = 0;  ///< of `fds`
    const store::Socket* record = nullptr;
    std::vector<std::byte> unsent;
    bool peer_in_tree = false;
  };
  std::vector<Connection> connections_;
};

/// Makes all of them, and their queues. What stands in the way goes to `reasons`, what is not quite as it was to
/// `notes`. The calling thread must have no other child to wait for under the numbers in the records, and none of these
/// numbers may be taken yet. `records` must outlive the result.
Sockets make_sockets(const std::vector<store::Socket>& records, const SocketSources& sources, Reasons& reasons,
                     ProgressSink& notes);

/// What holds between the members of hostile records: indices lead somewhere, sizes add up. Empty, or the first fault.
std::string check_sockets(const std::vector<store::Socket>& records);

}  // namespace ckpt::restore
