#include "lib/proc/seccomp.h"

#include <fmt/format.h>
#include <linux/filter.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>

#include "lib/base/io.h"
#include "lib/proc/host.h"

namespace ckpt::proc {

namespace {

constexpr auto kGetFilter = static_cast<__ptrace_request>(0x420c);
constexpr auto kGetMetadata = static_cast<__ptrace_request>(0x420d);

struct Metadata {  // struct seccomp_metadata
  uint64_t index;
  uint64_t flags;
};

/// The value of a "Name:\tvalue" line, "" when there is none.
std::string_view field(std::string_view text, std::string_view name) {
  size_t at = text.find(std::string("\n") + std::string(name) + ":\t");
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + name.size() + 3);
  return text.substr(0, text.find('\n'));
}

}  // namespace

unsigned long suspend_seccomp_option() {
  constexpr int kSysAdmin = 21;
  // The sysctl exists with CONFIG_CHECKPOINT_RESTORE alone, and so does the option.
  static const bool allowed = has_capability_everywhere(kSysAdmin) && ::prctl(PR_GET_SECCOMP) == 0 &&
                              ::access("/proc/sys/kernel/ns_last_pid", F_OK) == 0;
  return allowed ? kSuspendSeccomp : 0;
}

Result<SeccompState> read_seccomp_state(int pid, int tid) {
  constexpr uint64_t kLimit = 1 << 20;
  CKPT_TRY_ASSIGN(std::string text, io::read_file(fmt::format("/proc/{}/task/{}/status", pid, tid), kLimit));
  SeccompState out;
  std::string_view mode = field(text, "Seccomp");
  std::from_chars(mode.data(), mode.data() + mode.size(), out.mode);
  out.speculation = field(text, "Speculation_Store_Bypass").find("force mitigated") == std::string_view::npos &&
                    field(text, "SpeculationIndirectBranch").find("force disabled") == std::string_view::npos;
  return out;
}

Result<std::optional<SeccompProgram>> read_seccomp_filter(int tid, uint64_t index) {
  std::string subject = fmt::format("thread {}", tid);
  long count = ::ptrace(kGetFilter, tid, index, nullptr);
  if (count < 0 && errno == ENOENT) return std::optional<SeccompProgram>();
  if (count < 0) return sys_error(subject, "cannot read its seccomp filters");
  SeccompProgram out;
  out.instructions.resize(static_cast<size_t>(count) * sizeof(sock_filter));
  if (::ptrace(kGetFilter, tid, index, out.instructions.data()) != count)
    return sys_error(subject, "cannot read a seccomp filter");
  Metadata metadata{index, 0};
  constexpr uint64_t kLog = 2;  // SECCOMP_FILTER_FLAG_LOG, the one flag that the kernel tells
  if (::ptrace(kGetMetadata, tid, sizeof metadata, &metadata) > 0) out.log = (metadata.flags & kLog) != 0;
  return std::optional(std::move(out));
}

}  // namespace ckpt::proc
