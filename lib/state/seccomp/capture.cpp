#include "lib/state/seccomp/capture.h"

#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "lib/proc/seccomp.h"

namespace ckpt::capture {

namespace {

bool asks_another_process(const std::vector<uint8_t>& program) {
  for (size_t at = 0; at + sizeof(sock_filter) <= program.size(); at += sizeof(sock_filter)) {
    sock_filter instruction;
    std::memcpy(&instruction, program.data() + at, sizeof instruction);
    if (instruction.code == (BPF_RET | BPF_K) && (instruction.k & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_USER_NOTIF)
      return true;
  }
  return false;
}

using Known = std::map<std::pair<bool, std::vector<uint8_t>>, uint32_t>;

Result<store::ThreadSeccomp> describe_thread(int pid, int tid, Known& known, store::Seccomp& out) {
  CKPT_TRY_ASSIGN(proc::SeccompState state, proc::read_seccomp_state(pid, tid));
  store::ThreadSeccomp thread;
  thread.mode = state.mode, thread.speculation = state.speculation;
  for (uint64_t i = 0; thread.mode == SECCOMP_MODE_FILTER; ++i) {
    CKPT_TRY_ASSIGN(auto program, proc::read_seccomp_filter(tid, i));
    if (!program) break;
    if (asks_another_process(program->instructions)) {
      return fail(Code::kUnsupported, "",
                  fmt::format("thread {} has a seccomp filter that asks another process, which is not supported", tid));
    }
    auto [place, is_new] =
        known.try_emplace({program->log, program->instructions}, static_cast<uint32_t>(out.filters.size()));
    if (is_new) out.filters.push_back({program->log, std::move(program->instructions)});
    thread.chain.push_back(place->second);
  }
  return thread;
}

}  // namespace

Result<store::Seccomp> describe_seccomp(int pid, const std::vector<int>& tids) {
  store::Seccomp out;
  Known known;
  for (int tid : tids) {
    CKPT_TRY_ASSIGN(store::ThreadSeccomp thread, describe_thread(pid, tid, known, out));
    out.threads.push_back(std::move(thread));
  }
  bool any = std::any_of(out.threads.begin(), out.threads.end(), [](const auto& thread) { return thread.mode != 0; });
  if (!any) out.threads.clear();
  return out;
}

}  // namespace ckpt::capture
