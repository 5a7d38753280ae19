#include "lib/proc/host.h"

#include <cpuid.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/procfs.h"

namespace ckpt::proc {

namespace {

uint64_t read_xcr0() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1u << 27;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return 0;
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

/// The value of the first "key : value" line.
std::string cpuinfo_value(std::string_view text, std::string_view key) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.substr(0, key.size()) == key) {
      if (size_t colon = line.find(": "); colon != std::string_view::npos) return std::string(line.substr(colon + 2));
    }
    at = end + 1;
  }
  return {};
}

}  // namespace

Result<Host> read_host() {
  Host out;
  utsname names{};
  ::uname(&names);
  out.hostname = names.nodename, out.kernel = names.release, out.machine = names.machine;
  CKPT_TRY_ASSIGN(out.boot_id, io::read_file("/proc/sys/kernel/random/boot_id", 4096));
  while (!out.boot_id.empty() && out.boot_id.back() == '\n') out.boot_id.pop_back();
  CKPT_TRY_ASSIGN(std::string cpuinfo, io::read_file("/proc/cpuinfo", 16 << 20));
  out.cpu_model = cpuinfo_value(cpuinfo, "model name");
  std::string flags = cpuinfo_value(cpuinfo, "flags");
  for (size_t at = 0; at < flags.size();) {
    size_t end = std::min(flags.find(' ', at), flags.size());
    if (end > at) out.cpu_flags.push_back(flags.substr(at, end - at));
    at = end + 1;
  }
  out.xcr0 = read_xcr0();
  return out;
}

bool has_capability(int capability) {
  auto status = read_status(::getpid(), ::getpid());
  return status && (status->cap_effective >> capability & 1) != 0;
}

namespace {

/// Inode of the first user namespace (PROC_USER_INIT_INO in linux/proc_ns.h).
constexpr ino_t kFirstUserNamespace = 0xeffffffd;

}  // namespace

bool has_capability_everywhere(int capability) {
  struct stat st{};
  const bool is_first = ::stat("/proc/self/ns/user", &st) != 0 || st.st_ino == kFirstUserNamespace;
  return is_first && has_capability(capability);
}

bool has_capability_over(const char* kind, int capability) {
  return has_capability(capability) && is_within_reach(kind);
}

bool is_within_reach(const char* kind) {
  UniqueFd link(::open((std::string("/proc/self/ns/") + kind).c_str(), O_RDONLY | O_CLOEXEC));
  // Refused (EPERM): whoever owns it is outside of ckpt's user namespace.
  return !link || UniqueFd(::ioctl(link.get(), NS_GET_USERNS)) || errno != EPERM;
}

}  // namespace ckpt::proc
