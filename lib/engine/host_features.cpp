#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "lib/base/linkage.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/check.h"
#include "lib/proc/host.h"
#include "lib/proc/pagemap.h"
#include "lib/proc/remote_memory.h"

namespace ckpt::engine {

namespace {

constexpr int kXcr0Tiles = 18;  // XTILEDATA

Feature feature(const char* verb, const char* name, const Result<void>& found, const char* serves) {
  return {verb, name, found.has_value(), false, serves, found ? "" : found.error().text()};
}

Feature required(Feature feature) {
  feature.required = true;
  return feature;
}

Feature capability(const char* verb, const char* name, int number, const char* serves) {
  return {verb, name, proc::has_capability(number), false, serves, ""};
}

/// A child of ours is seized and read: a seccomp filter, a security module or Yama may be against it.
Result<void> try_ptrace() {
  const pid_t child = ::fork();
  if (child < 0) return fork_error(errno, "", "cannot make a process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  Result<void> out;
  std::byte byte{};
  if (::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) != 0) out = sys_error("ptrace", "cannot attach to a child");
  if (out) out = proc::read_memory(child, proc::RemoteAddress(reinterpret_cast<uint64_t>(&byte)), {&byte, 1});
  ::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
  return out;
}

Result<void> try_pagemap_scan() {
  CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(::getpid()));
  if (!pagemap.can_scan()) return fail(Code::kUnsupported, "", "Linux 6.7 has it");
  return {};
}

Result<void> try_userfaultfd(int flags, uint64_t features) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags)));
  if (!fd) return sys_error("", "");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0) return sys_error("", "this kernel lacks what is asked of it");
  return {};
}

Result<void> try_nftables() {
  CKPT_TRY(check_loads_libraries("libnftables.so.1"));
  void* library = ::dlopen("libnftables.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr)
    return fail(Code::kUnsupported, "libnftables.so.1", "cannot be loaded; the Debian package is libnftables1");
  ::dlclose(library);
  return {};
}

std::vector<Feature> features_of_dump() {
  constexpr int kUserModeOnly = 1;                       // UFFD_USER_MODE_ONLY
  constexpr uint64_t kFeatureWpAsync = uint64_t{1} << 15;  // UFFD_FEATURE_WP_ASYNC
  return {
      required(feature("dump", "ptrace", try_ptrace(), "any process")),
      feature("dump", "PAGEMAP_SCAN", try_pagemap_scan(),
              "copying only what was written; without it every dump is a full copy"),
      feature("dump", "userfaultfd", try_userfaultfd(kUserModeOnly, kFeatureWpAsync),
              "tracking writes; without it every dump is a full copy"),
      capability("dump", "CAP_SYS_PTRACE", CAP_SYS_PTRACE, "processes of other users"),
      capability("dump", "CAP_SYS_ADMIN", CAP_SYS_ADMIN, "processes with seccomp filters; processes of --new-pidns"),
      capability("dump", "CAP_NET_ADMIN", CAP_NET_ADMIN,
                 "TCP connections (--tcp-established), unix sockets whose name has gone"),
      feature("dump", "nftables", try_nftables(), "holding off the peers of TCP connections"),
  };
}

std::vector<Feature> features_of_restore() {
  auto host = proc::read_host();
  const bool tiles = host && (host->xcr0 >> kXcr0Tiles & 1) != 0;
  return {
      required({"restore", "CAP_CHECKPOINT_RESTORE", may_restore(), false, "the old pid, the old memory bounds", ""}),
      capability("restore", "CAP_SYS_ADMIN", CAP_SYS_ADMIN, "seccomp filters, --new-pidns, verify --rehearse"),
      capability("restore", "CAP_SYS_RESOURCE", CAP_SYS_RESOURCE,
                 "raising hard limits; without it they stay as they are"),
      capability("restore", "CAP_NET_ADMIN", CAP_NET_ADMIN, "TCP connections, large socket buffers"),
      feature("restore", "nftables", try_nftables(), "letting the peers of TCP connections in again"),
      feature("restore", "userfaultfd", try_userfaultfd(0, UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP),
              "--lazy"),
      {"restore", "AMX tiles", tiles, false, "processes that hold them", ""},
  };
}

/// Where no NVIDIA driver is there at all, nobody expects the verb to work.
Feature feature_of_suspend(const GpuOptions& gpu) {
  auto control = gpu.open ? gpu.open() : fail(Code::kUnsupported, "", "this ckpt has no GPU driver");
  const bool has_driver = ::access("/dev/nvidiactl", F_OK) == 0;
  return {"suspend",
          "CUDA checkpoints",
          control.has_value(),
          has_driver,
          "processes with a GPU: suspend, resume, dump, restore",
          control ? (*control)->version() : control.error().text()};
}

}  // namespace

std::vector<Feature> host_features(const GpuOptions& gpu) {
  std::vector<Feature> out = features_of_dump();
  for (Feature& feature : features_of_restore()) out.push_back(std::move(feature));
  out.push_back(feature_of_suspend(gpu));
  return out;
}

}  // namespace ckpt::engine
