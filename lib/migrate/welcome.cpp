#include "lib/migrate/welcome.h"

#include <fmt/format.h>
#include <unistd.h>

#include "lib/base/text.h"
#include "lib/proc/host.h"
#include "lib/proc/memory_room.h"
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

Result<void> check_memory(uint64_t bytes, const std::string& whose) {
  for (const proc::MemoryRoom& room : proc::read_memory_room(::getpid())) {
    if (room.bytes < bytes)
      return fail(Code::kNoRoom, room.limit,
                  fmt::format("has {} left, and {} {}", human_bytes(room.bytes), whose, human_bytes(bytes)));
  }
  return {};
}

}  // namespace ckpt::migrate
