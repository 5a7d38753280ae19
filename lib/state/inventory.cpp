#include "lib/state/inventory.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/base/worker_pool.h"
#include "lib/proc/host.h"
#include "lib/proc/seccomp.h"
#include "lib/proc/userfault.h"
#include "lib/state/aio/capture.h"
#include "lib/state/attributes/capture.h"
#include "lib/state/labels/capture.h"
#include "lib/state/memory_policies/capture.h"
#include "lib/state/namespaces/capture.h"
#include "lib/state/namespaces/entered.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

std::string Blocker::text() const { return subject + ": " + what + (flag.empty() ? "" : " (" + flag + " allows it)"); }

bool all_pass(const std::vector<Blocker>& blockers) {
  return !blockers.empty() && std::all_of(blockers.begin(), blockers.end(), [](const Blocker& b) { return b.passes; });
}

Error blocked_error(int pid, const std::vector<Blocker>& blockers) {
  Error error(Code::kUnsupported, "process " + proc::describe_pid(pid),
              blockers.size() == 1 ? "has something that cannot be dumped" : "has things that cannot be dumped");
  for (const Blocker& b : blockers) error.causes.push_back(b.text());
  error.target_state = "running, untouched";
  if (std::all_of(blockers.begin(), blockers.end(), [](const Blocker& b) { return b.what == kBeingFilled; })) {
    error.code = Code::kBusy;
    error.hint = "a lazy restore lets go of a process once all of its memory is in: try again then";
  }
  if (state::entered() == nullptr &&
      std::any_of(blockers.begin(), blockers.end(), [](const Blocker& b) { return b.what == kOtherNamespace; })) {
    auto status = proc::read_status(pid, pid);
    const int inside = status && !status->ns_pids.empty() ? status->ns_pids.back() : pid;
    error.hint = "run ckpt where the process is, for instance: nsenter --target " + std::to_string(pid) +
                 " --all ckpt dump -p " + std::to_string(inside) + " ...";
  }
  for (const Blocker& b : blockers) {
    if (b.passes) error.hint = "this passes when the process goes on: --timeout waits longer for it";
    if (b.what.rfind(kIoUring, 0) == 0) {
      error.hint = b.passes ? "a request that waits for a peer or a timer is in flight until it ends: --timeout waits "
                              "longer for a moment without one"
                            : "most programs do without where a seccomp filter denies io_uring_setup, as container "
                              "runtimes have it";
    }
    if (b.flag == kExternalMemoryFlag) {
      error.hint = "dump the tree from that process on, or with --external-memory copy the processes have a copy of "
                   "their own after a restore";
      continue;
    }
    if (b.flag.empty()) continue;
    error.hint =
        b.flag.starts_with("--shell-job")
            ? "with --shell-job it is taken over from the restoring shell" +
                  std::string(b.flag == "--shell-job" ? "" : ", with --external-pipes null it is /dev/null then")
            : b.flag + " allows it";
  }
  return error;
}

int Inventory::find(int pid) const {
  for (size_t i = 0; i < image.processes.size(); ++i) {
    if (image.processes[i].pid == pid) return static_cast<int>(i);
  }
  return -1;
}

Blocker Inventory::blocker(size_t process, const std::string& subject, std::string what, std::string flag) const {
  const store::ProcessImage& p = image.processes[process];
  std::string where = process == 0 ? "" : "process " + proc::describe_pid(p.pid) + (subject.empty() ? "" : ", ");
  if (process == 0 && subject.empty()) where = "process " + proc::describe_pid(p.pid);
  return {where + subject, std::move(what), std::move(flag)};
}

void Walk::collect_blockers() {
  for (Seen& one : seen) {
    std::move(one.blockers.begin(), one.blockers.end(), std::back_inserter(out.blockers));
    one.blockers.clear();
  }
}

Result<std::vector<Member>> open_members(const std::vector<proc::TreeEntry>& entries, std::vector<Member> known) {
  std::vector<Member> out;
  for (const proc::TreeEntry& entry : entries) {
    auto stat = proc::read_stat(entry.pid);
    if (!stat && stat.error().code == Code::kNotFound && entry.parent >= 0) continue;  // it has ended since
    if (!stat) return std::move(stat).error();
    Member& member = out.emplace_back();
    member.entry = entry;
    member.start_time = stat->start_time;
    if (entry.zombie) continue;
    auto same = [&](const Member& m) {
      return m.entry.pid == entry.pid && m.start_time == member.start_time && m.pidfd;
    };
    if (auto old = std::find_if(known.begin(), known.end(), same); old != known.end()) {
      member.pidfd = std::move(old->pidfd);
    } else {
      auto opened = proc::open_pidfd(entry.pid);
      if (!opened && opened.error().code == Code::kNotFound && entry.parent >= 0) {
        out.pop_back();
        continue;
      }
      if (!opened) return std::move(opened).error();
      member.pidfd = std::move(*opened);
    }
  }
  return out;
}

namespace {

std::string link_path(int pid, const char* name) { return "/proc/" + std::to_string(pid) + "/" + name; }

bool belongs_to_process(const std::string& path) {
  constexpr std::string_view kProcesses = "/proc/";
  return path.rfind(kProcesses, 0) == 0 && path.size() > kProcesses.size() &&
         std::isdigit(static_cast<unsigned char>(path[kProcesses.size()]));
}

Result<void> look_at_link(int pid, const char* name, Seen::Link& out) {
  CKPT_TRY_ASSIGN(out.path, proc::read_link(pid, name));
  const std::string link = link_path(pid, name);
  if (!belongs_to_process(out.path) && ::stat(link.c_str(), &out.st) != 0) return sys_error(link, "cannot stat");
  return {};
}

Result<int> add_link(const Seen::Link& seen, const std::string& link, FileTable& files) {
  if (belongs_to_process(seen.path))
    return fail(Code::kMismatch, seen.path, "belongs to a process, which a restore makes only later");
  return files.add(seen.path, seen.st, link);
}

/// A link that cannot be carried is a blocker.
Result<void> take_link(Walk& walk, size_t process, const Seen::Link& seen, const char* name, const char* subject,
                       int store::ProcessImage::*to) {
  auto index = add_link(seen, link_path(walk.members[process].entry.pid, name), walk.files);
  if (index) {
    walk.out.image.processes[process].*to = *index;
  } else if (answers_no(index.error().code)) {
    walk.out.block(process, subject, index.error().text());
  } else {
    return std::move(index).error();
  }
  return {};
}

Result<void> take_limits(int pid, store::ProcessImage& image) {
  static constexpr std::array<std::pair<std::string_view, int>, 16> kNames = {{
      {"Max cpu time", RLIMIT_CPU}, {"Max file size", RLIMIT_FSIZE}, {"Max data size", RLIMIT_DATA},
      {"Max stack size", RLIMIT_STACK}, {"Max core file size", RLIMIT_CORE}, {"Max resident set", RLIMIT_RSS},
      {"Max processes", RLIMIT_NPROC}, {"Max open files", RLIMIT_NOFILE}, {"Max locked memory", RLIMIT_MEMLOCK},
      {"Max address space", RLIMIT_AS}, {"Max file locks", RLIMIT_LOCKS}, {"Max pending signals", RLIMIT_SIGPENDING},
      {"Max msgqueue size", RLIMIT_MSGQUEUE}, {"Max nice priority", RLIMIT_NICE},
      {"Max realtime priority", RLIMIT_RTPRIO}, {"Max realtime timeout", RLIMIT_RTTIME},
  }};
  // prlimit(2) on another user's process needs CAP_SYS_RESOURCE; this file does not.
  CKPT_TRY_ASSIGN(std::string text, proc::read_small(pid, "limits"));
  for (const auto& [name, resource] : kNames) {
    size_t at = text.find(std::string(name) + " ");
    if (at == std::string::npos) continue;
    const char* p = text.c_str() + at + name.size();
    uint64_t value[2] = {};
    for (uint64_t& v : value) {
      while (*p == ' ') ++p;
      char* end = nullptr;
      v = std::string_view(p).substr(0, 9) == "unlimited" ? ~0ull : std::strtoull(p, &end, 10);
      p = end != nullptr ? end : p + 9;
    }
    image.limits.push_back({resource, value[0], value[1]});
  }
  return {};
}

uint64_t number_of(const Result<std::string>& text, int base, uint64_t otherwise) {
  if (!text) return otherwise;
  return static_cast<uint64_t>(std::strtoll(text->c_str(), nullptr, base));
}

bool is_nested(const proc::Status& status) { return status.ns_pids.size() > 1; }

/// In the pid namespaces within ckpt's.
void take_inner_numbers(const proc::Status& status, store::ProcessImage& image) {
  auto inner = [](const std::vector<int>& numbers) {
    return std::vector<int>(numbers.begin() + (numbers.empty() ? 0 : 1), numbers.end());
  };
  image.inner_groups = inner(status.ns_groups), image.inner_sessions = inner(status.ns_sessions);
}

/// Of a zombie there is nothing else.
Result<void> take_zombie(Walk& walk, size_t process, const proc::Stat& stat, store::ProcessImage& image) {
  const int pid = image.pid;
  image.zombie = true;
  image.exit_status = stat.exit_status;
  store::Thread& thread = image.threads.emplace_back();
  thread.tid = pid, thread.comm = stat.comm;
  CKPT_TRY_ASSIGN(proc::Status status, proc::read_status(pid, pid));
  std::copy(std::begin(status.uid), std::end(status.uid), thread.uid.begin());
  std::copy(std::begin(status.gid), std::end(status.gid), thread.gid.begin());
  // The first process of a pid namespace ends last: nothing tells any more that there was one.
  if (is_nested(status) && status.ns_pids.back() != 1) {
    thread.inner_tids.assign(status.ns_pids.begin() + 1, status.ns_pids.end());
    take_inner_numbers(status, image);
  } else if (status.ns_pids.size() > 2) {
    walk.block(process, "",
               "was the first process of a pid namespace within a further one, and its parent has not waited for it "
               "yet: not supported");
  }
  return {};
}

Result<void> take_process_facts(Walk& walk, size_t process) {
  const int pid = walk.members[process].entry.pid;
  store::ProcessImage& image = walk.out.image.processes[process];
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(pid));
  image.pid = pid, image.parent_pid = stat.parent, image.group = stat.group, image.session = stat.session;
  image.terminal = stat.terminal;
  image.exit_signal = stat.exit_signal;
  if (stat.is_zombie() && process == 0) {
    return fail(Code::kNotFound, "process " + proc::describe_pid(pid),
                "has ended (a zombie that its parent has not waited for)");
  }
  if (walk.members[process].entry.zombie) return take_zombie(walk, process, stat, image);
  CKPT_TRY_ASSIGN(proc::Status status, proc::read_status(pid, pid));
  image.umask = static_cast<int>(status.umask);
  image.thp_disabled = !status.thp_enabled;
  image.bounds = {stat.start_code, stat.end_code, stat.start_data, stat.end_data, stat.start_brk, 0, stat.start_stack,
                  stat.arg_start, stat.arg_end, stat.env_start, stat.env_end};
  image.personality = number_of(proc::read_small(pid, "personality"), 16, 0);
  image.login_uid = static_cast<int64_t>(number_of(proc::read_small(pid, "loginuid"), 10, ~0ull));
  image.oom_score_adj = static_cast<int>(number_of(proc::read_small(pid, "oom_score_adj"), 10, 0));
  image.coredump_filter = static_cast<int>(number_of(proc::read_small(pid, "coredump_filter"), 16, 0x33));
  const int then = walk.options.earlier != nullptr ? walk.options.earlier->find(pid) : -1;
  image.autogroup_nice = then >= 0 ? walk.options.earlier->image.processes[static_cast<size_t>(then)].autogroup_nice
                                   : read_autogroup_nice(pid);
  CKPT_TRY_ASSIGN(image.arguments, proc::read_cmdline(pid));
  CKPT_TRY_ASSIGN(image.auxv, proc::read_auxv(pid));
  take_inner_numbers(status, image);
  walk.out.statuses[process].push_back(std::move(status));
  return take_limits(pid, image);
}

/// The kernel walks every page table to show this: a process that stands still is believed to be as it was.
Result<bool> has_placed_mappings(int pid, const Inventory* earlier) {
  const int then = earlier != nullptr ? earlier->find(pid) : -1;
  if (then >= 0) return earlier->placed[static_cast<size_t>(then)];
  constexpr uint64_t kLimit = 512 << 20;
  auto text = io::read_file("/proc/" + std::to_string(pid) + "/numa_maps", kLimit);
  if (!text && text.error().code == Code::kNotFound) return false;  // a kernel without NUMA
  if (!text) return std::move(text).error();
  CKPT_TRY_ASSIGN(auto policies, parse_numa_maps(*text));
  return !policies.empty();
}

/// The code of other modes of the processor has other calls, other registers, other structures. x32 is one of them.
Result<bool> runs_64_bit_code(int pid) {
  CKPT_TRY_ASSIGN(UniqueFd exe, io::open_file("/proc/" + std::to_string(pid) + "/exe", O_RDONLY | O_CLOEXEC));
  std::array<unsigned char, EI_NIDENT> head{};
  if (::pread(exe.get(), head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()))
    return true;  // the file will be looked at anyway
  return head[EI_CLASS] != ELFCLASS32;
}

/// What no dump of the process could carry, whatever it has open.
Result<void> block_process(Walk& walk, size_t process) {
  const int pid = walk.out.image.processes[process].pid;
  const proc::Status& status = walk.out.statuses[process][0];
  if (status.tracer != 0 && status.tracer != ::getpid())
    walk.block(process, "", "is traced by " + proc::describe_pid(status.tracer));
  constexpr int kInit = 1;
  const bool can_be_ended = state::entered() != nullptr && state::entered()->end_init;
  if (pid == kInit && walk.options.ends && !can_be_ended) {
    walk.block(process, "", "is the init of ckpt's own pid namespace, which the kernel lets nobody inside end or stop",
               "--leave-running");
  }
  if (walk.options.frozen) return {};  // it has been looked at
  CKPT_TRY_ASSIGN(const bool is_wide, runs_64_bit_code(pid));
  if (!is_wide) walk.block(process, "", "is a 32-bit task, which is not supported");
  return {};
}

/// The calls that ckpt makes in a process are its own to the filters: they may end it for one.
void block_filters(Walk& walk, size_t process) {
  const auto& statuses = walk.out.statuses[process];
  const auto is_filtered = [](const proc::Status& status) { return status.seccomp != 0; };
  if (proc::suspend_seccomp_option() != 0 || std::none_of(statuses.begin(), statuses.end(), is_filtered)) return;
  walk.block(process, "",
             "has seccomp filters: to set them aside takes CAP_SYS_ADMIN in the first user namespace, and a ckpt "
             "without any");
}

/// Where a restore gets a descriptor of it, the kernel asks for rights that no user namespace gives (map_files).
void block_unrestorable_memory(Walk& walk) {
  constexpr int kSysAdmin = 21, kCheckpointRestore = 40;
  const auto& memories = walk.out.image.shared_memory;
  const bool has_some = std::any_of(memories.begin(), memories.end(), [](const store::SharedMemory& memory) {
    return memory.kind == store::SharedMemory::Kind::kAnonymous;
  });
  if (!has_some || !walk.options.ends || !proc::has_capability(kSysAdmin)) return;
  if (proc::has_capability_everywhere(kSysAdmin) || proc::has_capability_everywhere(kCheckpointRestore)) return;
  walk.out.block(0, "",
                 "has shared memory without a file: a restore of it takes CAP_CHECKPOINT_RESTORE in the first user "
                 "namespace",
                 "--leave-running");
}

/// All of a process but its mappings, as far as it does not depend on others.
Result<void> look_at_process(Walk& walk, size_t process) {
  const store::ProcessImage& image = walk.out.image.processes[process];
  CKPT_TRY(block_process(walk, process));
  CKPT_TRY(inventory_threads(walk, process));
  block_filters(walk, process);
  Seen& seen = walk.seen[process];
  CKPT_TRY(look_at_link(image.pid, "exe", seen.exe));
  CKPT_TRY(look_at_link(image.pid, "cwd", seen.cwd));
  CKPT_TRY(look_at_link(image.pid, "root", seen.root));
  if (image.descriptors_of >= 0) return {};
  CKPT_TRY_ASSIGN(seen.fds, proc::read_fds_with_info(image.pid));
  return {};
}

/// Of a tree that runs both the mappings with their advice and their NUMA policies make the kernel read all page
/// tables: these two go side by side, too.
Result<void> look_at_processes(Walk& walk) {
  constexpr size_t kLooks = 3;
  const size_t count = walk.members.size();
  std::vector<char> placed(count);  // not vector<bool>, whose elements are no objects of their own
  CKPT_TRY(side_by_side(walk.pool, kLooks * count, [&](size_t look) -> Result<void> {
    const size_t i = look / kLooks;
    if (walk.is_zombie(i)) return {};
    if (look % kLooks == 2) return look_at_process(walk, i);
    if (walk.out.image.processes[i].memory_of >= 0) return {};
    if (look % kLooks == 0) return look_at_maps(walk, i);
    CKPT_TRY_ASSIGN(placed[i], has_placed_mappings(walk.members[i].entry.pid, walk.options.mappings()));
    return {};
  }));
  walk.out.placed.assign(placed.begin(), placed.end());
  walk.collect_blockers();
  return {};
}

/// The files that a process maps and stands in, which others may have too.
Result<void> take_process(Walk& walk, size_t process) {
  const state::InMounts there(walk.mounts_of(process));
  const int memory_of = walk.out.image.processes[process].memory_of;
  if (memory_of < 0) CKPT_TRY(inventory_maps(walk, process));
  else walk.out.gpus[process] = walk.out.gpus[static_cast<size_t>(memory_of)];
  const Seen& seen = walk.seen[process];
  CKPT_TRY(take_link(walk, process, seen.exe, "exe", "its executable", &store::ProcessImage::exe));
  CKPT_TRY(take_link(walk, process, seen.cwd, "cwd", "its working directory", &store::ProcessImage::cwd));
  return take_link(walk, process, seen.root, "root", "its root directory", &store::ProcessImage::root);
}

Result<void> refuse_strange(const std::vector<Member>& members) {
  for (const Member& member : members) {
    const int pid = member.entry.pid;
    if (pid != ::getpid() && pid != ::getppid()) continue;
    const bool whole = pid == members[0].entry.pid;
    return fail(Code::kUsage, std::to_string(members[0].entry.pid),
                whole ? "ckpt cannot dump itself" : "ckpt was started by it, and cannot dump itself");
  }
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(members[0].entry.pid));
  if (stat.is_kernel_thread())
    return fail(Code::kUnsupported, "process " + proc::describe_pid(stat.pid), "is a kernel thread");
  return {};
}

}  // namespace

store::VmFlags lasting_flags(const proc::Vma& vma) {
  store::VmFlags out;
  constexpr size_t kLetters = store::VmFlags::kLetters;
  for (size_t at = 0; at < vma.flags.size(); at += kLetters) {
    const std::string_view flag = std::string_view(vma.flags).substr(at, kLetters);
    if (flag != "uw" && flag != "sd") out.add(flag);
  }
  return out;
}

namespace {

bool same_advice(const proc::Vma& was, const proc::Vma& now) {
  return now.end != was.end || now.flags == was.flags || lasting_flags(now) == lasting_flags(was) ||
         now.prot != was.prot || now.name != was.name;
}

}  // namespace

Result<bool> advice_unchanged(const Inventory& earlier) {
  bool out = true;
  for (size_t i = 0; i < earlier.image.processes.size() && out; ++i) {
    auto was = earlier.vmas[i].begin();
    const auto end = earlier.vmas[i].end();
    if (was == end) continue;
    auto compared = proc::each_mapping(earlier.image.processes[i].pid, true, [&](proc::Vma& now) {
      while (was != end && was->start < now.start) ++was;
      if (was != end && was->start == now.start) out = out && same_advice(*was, now);
    });
    if (!compared && compared.error().code != Code::kNotFound) return std::move(compared).error();
  }
  return out;
}

Result<Inventory> take_inventory(const std::vector<Member>& members, const InventoryOptions& options) {
  CKPT_TRY(refuse_strange(members));
  Inventory out;
  out.image.processes.resize(members.size());
  out.statuses.resize(members.size());
  out.vmas.resize(members.size());
  out.placed.resize(members.size());
  out.gpus.resize(members.size());
  out.gpu_files.resize(members.size());
  FileTable files(out, options.ghost_limit);
  SharedMemoryTable shared_memory(out);
  std::optional<WorkerPool> own;
  if (options.pool == nullptr && !options.frozen) make_helpers(0, own);
  Walk walk{members, options, files, shared_memory, out, own ? &*own : options.pool, std::vector<Seen>(members.size())};
  const Namespaces ours(members[0].entry.pid);
  CKPT_TRY(side_by_side(walk.pool, members.size(), [&](size_t i) -> Result<void> {
    CKPT_TRY(take_process_facts(walk, i));
    if (walk.is_zombie(i)) ours.compare_pids(walk, i);
    else ours.compare(walk, i);
    return {};
  }));
  walk.collect_blockers();
  // Of what is in another namespace nothing else can be told rightly: names lead elsewhere, numbers are others.
  if (!out.blockers.empty()) return out;
  CKPT_TRY(inventory_namespaces(walk));
  inventory_sharing(walk);
  CKPT_TRY(inventory_further(walk));
  inventory_leaders(walk);
  CKPT_TRY(look_at_processes(walk));
  for (size_t i = 0; i < members.size(); ++i) {
    if (!walk.is_zombie(i)) CKPT_TRY(take_process(walk, i));
  }
  CKPT_TRY(inventory_aio(walk));
  CKPT_TRY(inventory_ipc(walk));
  CKPT_TRY(inventory_descriptors(walk));
  note_inner_credentials(walk);
  CKPT_TRY(take_contents(out, files, options.contents, options.ghost_limit));
  shared_memory.find_sources();
  block_unrestorable_memory(walk);
  inventory_outside(walk);
  out.image.labels_recorded = true;
  note_labels(out);
  return out;
}

namespace {

Result<Inventory> look_once(int root, std::vector<Member>& members, const InventoryOptions& options) {
  constexpr int kAttempts = 200, kErrors = 40;
  for (int attempt = 1, errors = 0;; ++attempt) {
    CKPT_TRY_ASSIGN(std::vector<proc::TreeEntry> entries, proc::read_tree(root));
    CKPT_TRY_ASSIGN(members, open_members(entries, std::move(members)));
    auto found = take_inventory(members, options);
    if (found || attempt == kAttempts || proc::has_ended(root)) return found;
    if (found.error().code == Code::kNotFound) continue;  // somebody has ended
    const Code code = found.error().code;
    if (code == Code::kPermission || code == Code::kUsage || ++errors == kErrors)
      return found;  // else a descriptor may have become another one between two questions about it
    ::usleep(1000);
  }
}

}  // namespace

Result<Inventory> look_at_running(int root, std::vector<Member>& members, const InventoryOptions& options) {
  constexpr int kLooks = 4;
  CKPT_TRY_ASSIGN(Inventory out, look_once(root, members, options));
  for (int look = 1; look < kLooks && !out.blockers.empty(); ++look) {
    ::usleep(
        1000u << look);  // a process that has just been forked, and has its parent's descriptors, is a member by then
    CKPT_TRY_ASSIGN(Inventory next, look_once(root, members, options));
    std::set<std::string> known;
    for (const Blocker& blocker : out.blockers) known.insert(blocker.text());
    std::erase_if(next.blockers, [&](const Blocker& blocker) { return known.count(blocker.text()) == 0; });
    std::erase_if(next.outside_pipes, [&](const std::string& pipe) { return out.outside_pipes.count(pipe) == 0; });
    out = std::move(next);
  }
  return out;
}

}  // namespace ckpt::capture
