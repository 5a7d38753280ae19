// The command whose standard input and output are the stream: `ssh HOST ckpt receive`.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/migrate/link.h"
#include "lib/migrate/words.h"

namespace ckpt::migrate {

/// How to reach the other end.
struct Remote {
  std::vector<std::string> command;  ///< the program first; sought in PATH
  std::string host;                  ///< for messages
  uint64_t silence_us = 30'000'000;
};

class Connection {
 public:
  static Result<std::unique_ptr<Connection>> open(const Remote& remote, Link::Limits limits, const Cancel* cancel);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  /// Ends the stream, and the command where it does not end by itself. Not in a fork.
  ~Connection();
  Link& link() { return *link_; }

 private:
  Connection() = default;
  std::unique_ptr<Link> link_;
  pid_t pid_ = -1, owner_ = -1;
};

/// By a connection of its own: what became of migration `id`. Nothing is let go there any more afterwards. kUnknown:
/// it was not to be found out.
Verdict ask_once(const Remote& remote, const std::string& id);

}  // namespace ckpt::migrate
