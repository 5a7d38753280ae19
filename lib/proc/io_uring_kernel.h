// An io_uring as the kernel keeps it: what neither its fdinfo nor any call tells.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

/// What of credentials decides about a request.
struct UringCredentials {
  std::array<uint32_t, 4> uid{}, gid{};  ///< real, effective, saved, of files
  std::vector<uint32_t> groups;
  uint64_t capabilities = 0;  ///< effective
  bool operator==(const UringCredentials&) const = default;
};

/// IORING_REGISTER_RESTRICTIONS: masks of what is allowed, bit N for number N.
struct UringRestrictions {
  uint64_t registrations = 0, requests = 0;
  uint32_t flags_allowed = 0, flags_required = 0;  ///< of requests (IOSQE_*)
};

struct UringKernelInfo {
  uint32_t flags = 0;  ///< IORING_SETUP_*; IORING_SETUP_R_DISABLED only as long as it is not enabled
  std::vector<std::pair<uint32_t, UringCredentials>> personalities;  ///< by number
  bool has_restrictions = false;
  UringRestrictions restrictions;
  std::vector<uint64_t> file_tags, buffer_tags;  ///< one for each slot; empty: no slot has one
  // Of a ring with a thread that polls it:
  uint32_t idle_ms = 0;       ///< how long the thread looks for requests before it sleeps
  int processor = -1;         ///< which it is bound to, -1: none
  UringCredentials credentials;  ///< which requests have that name no personality
  std::string other;  ///< what else it has that no restore could make again; empty: nothing
};

/// Of a descriptor of ckpt's. kPermission, kUnsupported: see KernelMemory.
Result<UringKernelInfo> read_uring_in_kernel(int fd);

/// Those of the first thread of a process.
Result<UringCredentials> credentials_in_kernel(int pid, int pidfd);

}  // namespace ckpt::proc
