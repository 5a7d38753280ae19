// Calls that the kernel remembers the caller of: socketpair, connect, listen, and messages with credentials.
#pragma once

#include <functional>

#include "lib/base/result.h"
#include "lib/store/socket_image.h"

namespace ckpt::rebuild {

/// What came of a call in another process.
struct CallResult {
  int value = 0;           ///< of the call; negative: -errno
  bool had_number = true;  ///< the process had the number asked for
};

/// Runs `call` in a short-lived child that shares ckpt's descriptors but nothing else, with the number, ids and groups
/// of `who` (pid 0: any). Its capabilities stay ckpt's. `call` must do plain system calls only: it runs in a copy of a
/// process that may have threads. It may change folder and root; what it stores is lost. Fails when no child can be
/// made or the ids cannot be had.
Result<CallResult> run_as(const store::SocketCredentials& who, const std::function<int()>& call);

/// Two integers that `call` can store for ckpt: a page that both share.
class SharedPair {
 public:
  static Result<SharedPair> create();
  SharedPair(SharedPair&& other) noexcept : values_(other.values_) { other.values_ = nullptr; }
  SharedPair& operator=(SharedPair&&) = delete;
  ~SharedPair();
  int* values() const { return values_; }

 private:
  explicit SharedPair(int* values) : values_(values) {}
  int* values_;
};

}  // namespace ckpt::rebuild
