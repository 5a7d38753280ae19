#include "lib/migrate/welcome.h"

#include <fmt/format.h>

#include "lib/proc/host.h"
#include "lib/proc/procfs.h"
#include "lib/proc/usage.h"
#include "lib/state/host_check.h"

namespace ckpt::migrate {

Result<Hello> introduce(int pid) {
  Hello out;
  CKPT_TRY_ASSIGN(const proc::Host host, proc::read_host());
  out.host = {host.hostname,  host.kernel,    host.machine, host.boot_id,
              host.cpu_model, host.cpu_flags, host.xcr0,    store::kPageSize};
  CKPT_TRY_ASSIGN(const auto tree, proc::read_tree(pid));
  for (const proc::TreeEntry& entry : tree) {
    const auto status = proc::read_status(entry.pid, entry.pid);
    if (status && !status->ns_pids.empty()) out.pids.push_back(status->ns_pids.back());
    if (!entry.zombie) out.memory += proc::read_private_pages(entry.pid) * store::kPageSize;
  }
  return out;
}

Result<void> check_welcome(const Hello& hello) {
  restore::Reasons reasons;
  restore::check_host(hello.host, {}, reasons);
  CKPT_TRY(reasons.verdict("the process"));
  if (hello.wishes.new_pid_namespace) return {};
  for (int pid : hello.pids) {
    if (pid > 0 && proc::read_stat(pid))
      return Error(Code::kBusy, fmt::format("process {}", pid), "is another one here").with_hint("--new-pidns");
  }
  return {};
}

}  // namespace ckpt::migrate
