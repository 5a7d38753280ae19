// nftables by its own library, libnftables.so.1, which is loaded when it is needed. Needs CAP_NET_ADMIN and a kernel
// with nf_tables.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lib/base/result.h"
#include "lib/base/worker_pool.h"

namespace ckpt::proc {

/// Its context is a netlink socket in the network namespace of who opens it, which owns each table of `flags owner`:
/// they go with this object. The library calls select(2) and aborts where that socket has a number of 1024 or more: it
/// lives in a thread whose table of descriptors is its own and empty.
class Nftables {
 public:
  /// kUnsupported: there is no such library, or ckpt is linked statically.
  static Result<std::unique_ptr<Nftables>> open();
  Nftables() = default;
  Nftables(const Nftables&) = delete;
  Nftables& operator=(const Nftables&) = delete;
  ~Nftables();

  /// What nftables answers when a command fails, one line; nothing: it succeeded.
  std::optional<std::string> run(const std::string& commands);
  /// What `list ruleset` prints, numbers in the place of names; `run` takes it back. kUnsupported: in nftables' words.
  Result<std::string> list();

 private:
  static Result<void> load(Nftables* out);
  std::optional<std::string> run_here(const std::string& commands);
  template <class F>
  bool find(const char* name, F*& out);

  WorkerPool alone_{1};
  void* library_ = nullptr;
  void* context_ = nullptr;
  void* (*create_)(unsigned) = nullptr;
  void (*free_)(void*) = nullptr;
  int (*run_)(void*, const char*) = nullptr;
  int (*buffer_error_)(void*) = nullptr;
  int (*buffer_output_)(void*) = nullptr;
  const char* (*error_)(void*) = nullptr;
  const char* (*output_)(void*) = nullptr;
  void (*set_format_)(void*, unsigned) = nullptr;
};

}  // namespace ckpt::proc
