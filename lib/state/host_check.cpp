#include "lib/state/host_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <set>

#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/proc/host.h"
#include "lib/proc/own_helpers.h"
#include "lib/proc/procfs.h"
#include "lib/state/tree/child.h"
#include "lib/state/tree/seed.h"

namespace ckpt::restore {

namespace {

void check_privilege(Reasons& reasons) {
  constexpr int kSysAdmin = 21, kCheckpointRestore = 40;
  if (proc::has_capability_over("pid", kSysAdmin) || proc::has_capability_over("pid", kCheckpointRestore)) return;
  if (proc::has_capability(kSysAdmin)) {
    reasons.add(Code::kPermission,
                "giving a process its old number needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN over this pid "
                "namespace, which belongs to a user namespace outside of ckpt's");
    return reasons.hint(kNumbersHint);
  }
  reasons.add(Code::kPermission, "giving a process its old number needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN");
  reasons.hint("run ckpt restore as root");
}

void check_cpu(const store::HostFacts& then, Reasons& reasons) {
  auto now = proc::read_host();
  if (!now) return reasons.add(now.error());
  std::set<std::string> have(now->cpu_flags.begin(), now->cpu_flags.end());
  std::string missing;
  for (const auto& flag : then.cpu_flags) {
    if (have.count(flag) == 0) missing += " " + flag;
  }
  if (!missing.empty())
    reasons.add(Code::kUnsupported, fmt::format("this CPU ({}) lacks what the image's ({}) has:{}", now->cpu_model,
                                                then.cpu_model, missing));
  if ((then.xcr0 & ~now->xcr0) != 0) {
    reasons.add(Code::kUnsupported,
                fmt::format("this host does not enable the extended registers of the image (XCR0 {:#x}, needed {:#x})",
                            now->xcr0, then.xcr0));
  }
}

/// The process calls into the vdso at addresses it has in its registers and tables, so the code must be the same.
void check_vdso(const store::ProcessImage& image, Reasons& reasons) {
  if (image.vdso_start == 0) return;
  auto maps = proc::read_maps(::getpid(), false);
  if (!maps) return reasons.add(maps.error());
  for (const auto& part : image.maps) {
    if (part.kind != store::MappingKind::kVdso) continue;
    auto own = std::find_if(maps->begin(), maps->end(), [&](const proc::Vma& vma) { return vma.name == part.name; });
    bool same = own != maps->end() && own->end - own->start == part.end - part.start;
    if (same && part.name == "[vdso]") {
      ByteSpan bytes(reinterpret_cast<const std::byte*>(own->start), own->end - own->start);
      same = to_hex(xxh3_128(bytes)) == image.vdso_xxh128;
    }
    if (!same) {
      return reasons.add(Code::kUnsupported,
                         fmt::format("this kernel's {} is not that of the image: it was taken under another kernel, "
                                     "and moving between kernels is not supported",
                                     part.name));
    }
  }
}

/// A leader that has ended keeps its number until its parent asks for its exit code. Init surely will, though some
/// inits of containers look only every few seconds; another parent may never.
void await_reaping(int pid) {
  constexpr uint64_t kPatienceUs = 1'000'000, kPatienceWithInitUs = 5'000'000;
  Stopwatch watch;
  for (;;) {
    auto stat = proc::read_stat(pid);
    if (!stat || stat->state != 'Z') return;
    if (watch.elapsed_us() > (stat->parent == 1 ? kPatienceWithInitUs : kPatienceUs)) return;
    timespec nap{0, 2'000'000};
    ::nanosleep(&nap, nullptr);
  }
}

bool is_taken(int number, bool with_group) {
  if (::access(fmt::format("/proc/{}", number).c_str(), F_OK) == 0) return true;
  // A group keeps the number of its leader for as long as it has members.
  return with_group && (::kill(-number, 0) == 0 || errno == EPERM);
}

/// The tracking daemons of ckpt's own (lib/memory/tracking_daemon.h) go elsewhere when they are asked to; and whoever
/// has begun just now is given a moment to end, as most do on a busy machine.
void await_release(const store::TreeImage& tree, int number, bool with_group, Stopwatch& waited) {
  constexpr uint64_t kPatienceUs = 2'000'000;
  constexpr double kYoungSeconds = 10;
  auto stat = proc::read_stat(number);
  if (!stat || stat->is_zombie()) return;
  const bool daemon = stat->comm == proc::kTrackingDaemonName && proc::runs_this_program(number);
  double up = 0;
  if (auto uptime = io::read_file("/proc/uptime", 64)) up = std::atof(uptime->c_str());
  const double age = up - static_cast<double>(stat->start_time) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (!daemon && age > kYoungSeconds) return;
  if (daemon) {
    (void)step_over_numbers(tree);
    ::kill(number, proc::kMoveSignal);
  }
  while (is_taken(number, with_group) && waited.elapsed_us() < kPatienceUs) ::usleep(1000);
}

}  // namespace

void check_vdso(const store::TreeImage& tree, Reasons& reasons) {
  const size_t before = reasons.size();
  for (const auto& process : tree.processes) {
    check_vdso(process, reasons);
    if (reasons.size() != before) break;  // the others would say the same
  }
}

void check_pid_max(const store::TreeImage& tree, Reasons& reasons) {
  auto text = io::read_file("/proc/sys/kernel/pid_max", 64);
  if (!text) return;
  int limit = std::atoi(text->c_str());
  int highest = 0;
  for (const auto& process : tree.processes) {
    for (const auto& thread : process.threads) highest = std::max(highest, thread.tid);
  }
  if (highest >= limit)
    reasons.add(Code::kUnsupported,
                fmt::format("number {} is beyond this host's kernel.pid_max of {}", highest, limit));
}

void check_host(const store::HostFacts& then, const store::TreeImage& tree, Reasons& reasons) {
  check_privilege(reasons);
  check_cpu(then, reasons);
  check_vdso(tree, reasons);
}

void check_numbers(const store::TreeImage& tree, Reasons& reasons) {
  Stopwatch waited;
  for (const auto& process : tree.processes) {
    constexpr int kInit = 1;
    if (process.pid != kInit || !has_seed()) await_reaping(process.pid);
    for (const auto& thread : process.threads) {
      if (thread.tid == kInit && has_seed()) continue;
      const bool with_group = thread.tid == process.pid;
      if (!is_taken(thread.tid, with_group)) continue;
      await_release(tree, thread.tid, with_group, waited);
      std::string holder = is_taken(thread.tid, with_group) ? holder_of(thread.tid) : "";
      if (holder.empty()) continue;  // it ended just now
      reasons.hint(kNumbersHint);
      reasons.add(Code::kBusy, fmt::format("{} {} is taken by {}", thread.tid == process.pid ? "pid" : "thread id",
                                           thread.tid, holder));
    }
  }
}

}  // namespace ckpt::restore
