// Calls made by a short-lived child in ckpt's place: under a number and ids that the kernel remembers (socketpair,
// connect, listen, messages with credentials), or with no more rights than a process had (files).
#pragma once

#include <array>
#include <compare>
#include <functional>

#include "lib/base/result.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

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

/// What decides whether a process may open, make or change a file.
struct Rights {
  uint32_t uid = 0, gid = 0;  ///< for file systems
  std::vector<uint32_t> groups;
  uint64_t capabilities = 0;  ///< effective
  auto operator<=>(const Rights&) const = default;
};
Rights rights_of(const store::Thread& thread);

/// Like `run_as`, under any number, with these rights: capabilities are given up, never gained, and the
/// child's root is that of the processes (files/tree_root.h), and so is its user namespace (namespaces/user.h), to
/// which the capabilities belong. The result is the call's.
Result<int> run_with(const Rights& rights, const std::function<int()>& call);

/// What decides about the requests of an io_uring.
struct Credentials {
  std::array<uint32_t, 4> uid{}, gid{};  ///< real, effective, saved, for file systems
  std::vector<uint32_t> groups;
  uint64_t capabilities = 0;  ///< effective
};
/// Like `run_with`, with all of these credentials, under ckpt's own root. Fails where ckpt lacks one of the
/// capabilities.
Result<int> run_with_credentials(const Credentials& who, const std::function<int()>& call);
/// Like `run_as`, as root of the processes' user namespace, with all capabilities there and none outside.
Result<int> run_in_user_namespace(const std::function<int()>& call);

/// Integers that `call` can store for ckpt: a page that both share.
class SharedValues {
 public:
  static constexpr size_t kValues = 1024;
  static Result<SharedValues> create();
  SharedValues(SharedValues&& other) noexcept : values_(other.values_) { other.values_ = nullptr; }
  SharedValues& operator=(SharedValues&&) = delete;
  ~SharedValues();
  int* values() const { return values_; }

 private:
  explicit SharedValues(int* values) : values_(values) {}
  int* values_;
};

}  // namespace ckpt::restore
