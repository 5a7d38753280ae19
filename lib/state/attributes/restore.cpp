#include "lib/state/attributes/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "lib/base/io.h"
#include "lib/proc/host.h"
#include "lib/state/namespaces/user.h"

namespace ckpt::restore {

namespace {

constexpr int kExceptAdvised = 1 << 1;  // PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18

prctl_mm_map bounds_of(const store::ProcessImage& image, int exe, RestorerArea& area) {
  const store::MemoryBounds& b = image.bounds;
  prctl_mm_map out{};
  out.start_code = b.start_code, out.end_code = b.end_code;
  out.start_data = b.start_data, out.end_data = b.end_data;
  out.start_brk = b.start_brk, out.brk = b.brk, out.start_stack = b.start_stack;
  out.arg_start = b.arg_start, out.arg_end = b.arg_end, out.env_start = b.env_start, out.env_end = b.env_end;
  ByteSpan auxv(reinterpret_cast<const std::byte*>(image.auxv.data()), image.auxv.size() * sizeof(uint64_t));
  out.auxv = reinterpret_cast<__u64*>(area.put_bytes(auxv));
  out.auxv_size = static_cast<uint32_t>(auxv.size());
  out.exe_fd = static_cast<uint32_t>(exe);
  return out;
}

}  // namespace

void set_folders(const store::ProcessImage& image, const store::TreeImage& tree, const OpenedFiles& files, Child& child,
                 SyscallBatch& batch) {
  if (image.root >= 0 && tree.files[static_cast<size_t>(image.root)].path != "/") {
    batch.add("go to the root folder", SYS_fchdir, files.folders.at(image.root));
    batch.add("change the root folder", SYS_chroot, child.area().put_string("."));
  }
  if (image.cwd >= 0) batch.add("go to the working folder", SYS_fchdir, files.folders.at(image.cwd));
  batch.add("set the umask", SYS_umask, image.umask);
}

void set_bounds(const store::ProcessImage& image, const OpenedFiles& files, Child& child, SyscallBatch& batch) {
  prctl_mm_map bounds = bounds_of(image, files.executables.at(image.exe), child.area());
  batch.add("set the bounds of memory and the executable", SYS_prctl, PR_SET_MM, PR_SET_MM_MAP,
            child.area().put(bounds), sizeof bounds, 0);
  batch.try_add("set the use of huge pages", SYS_prctl, PR_SET_THP_DISABLE, image.thp_disabled ? 1 : 0,
                image.thp_except_advised ? kExceptAdvised : 0, 0, 0);
}

void set_identity(const store::ProcessImage& image, SyscallBatch& batch) {
  batch.add("forget the parent for now", SYS_prctl, PR_SET_PDEATHSIG, 0, 0, 0,
            0);  // the tracer's end is what kills it
  batch.add("set whether orphans are adopted", SYS_prctl, PR_SET_CHILD_SUBREAPER, image.child_subreaper ? 1 : 0, 0, 0,
            0);
}

void register_barriers(const store::ProcessImage& image, SyscallBatch& batch) {
  constexpr int kSetMemoryMerge = 67;  // PR_SET_MEMORY_MERGE, Linux 6.4: of all its memory, that is there by now
  if (image.memory_merge) batch.add("have its memory merged", SYS_prctl, kSetMemoryMerge, 1, 0, 0, 0);
  for (uint32_t command = 1; command != 0; command <<= 1) {
    if ((image.membarrier & command) != 0)
      batch.add("register for memory barriers (membarrier)", SYS_membarrier, command, 0, 0);
  }
}

Result<void> set_login_uid(const store::ProcessImage& image, Child& child, ProgressSink& progress) {
  auto now = io::read_file("/proc/self/loginuid", 64);
  if (image.login_uid < 0 || !now || *now == std::to_string(image.login_uid)) return {};
  SyscallBatch open;
  open.try_add("open its login uid", SYS_openat, AT_FDCWD, child.area().put_string("/proc/self/loginuid"), O_WRONLY);
  CKPT_TRY(child.run(open));
  const int64_t fd = open.calls()[0].result;
  const std::string text = std::to_string(image.login_uid);
  SyscallBatch write;
  write.try_add("write its login uid", SYS_write, fd, child.area().put_string(text), text.size());
  if (fd >= 0) write.add("close its login uid", SYS_close, fd);
  CKPT_TRY(child.run(write));
  if (const int64_t result = write.calls()[0].result; result < 0) {
    progress.note(
        fmt::format("process {}: its login uid stays {}, not {}: {}", image.pid, *now, text, write.failure(0).text()));
  }
  return {};
}

Result<void> set_futex_table(const store::ProcessImage& image, Child& child, ProgressSink& progress) {
  constexpr int kFutexHash = 78, kSetSlots = 1;  // PR_FUTEX_HASH, Linux 6.16
  if (image.futex_slots < 0) return {};
  SyscallBatch set;
  set.try_add("set the size of its futex table", SYS_prctl, kFutexHash, kSetSlots, image.futex_slots, 0, 0);
  CKPT_TRY(child.run(set));
  // A kernel without tables of processes says that, and has what was wanted.
  const bool has_none = image.futex_slots == 0 && set.calls()[0].result == -EINVAL;
  if (set.calls()[0].result < 0 && !has_none)
    progress.note(fmt::format("process {}: {}", image.pid, set.failure(0).text()));
  return {};
}

void set_limits(const store::ProcessImage& image, Child& child, SyscallBatch& batch, ProgressSink& progress) {
  constexpr int kSysResource = 24;
  bool may_raise = proc::has_capability(kSysResource);
  for (const auto& limit : image.limits) {
    rlimit own{}, wanted{limit.soft, limit.hard};
    ::getrlimit(static_cast<__rlimit_resource>(limit.resource), &own);
    if (wanted.rlim_max > own.rlim_max && !may_raise) {
      progress.note(fmt::format("limit {}: the hard limit stays at {}, for raising it to {} needs CAP_SYS_RESOURCE",
                                limit.resource, own.rlim_max, wanted.rlim_max));
      wanted.rlim_max = own.rlim_max;
      wanted.rlim_cur = std::min(wanted.rlim_cur, wanted.rlim_max);
    }
    const bool by_ckpt = state::tree_user() != nullptr && may_raise &&
                         ::prlimit(image.pid, static_cast<__rlimit_resource>(limit.resource), &wanted, nullptr) == 0;
    if (by_ckpt) continue;  // who is in a user namespace may not raise one
    batch.add("set a limit", SYS_prlimit64, 0, limit.resource, child.area().put(wanted), 0);
  }
  batch.add("set the personality", SYS_personality, image.personality);
}

bool hears_of_parents_end(const store::ProcessImage& image) {
  return image.parent_death_signal != 0 ||
         std::any_of(image.threads.begin(), image.threads.end(),
                     [](const store::Thread& thread) { return thread.parent_death_signal != 0; });
}

void set_after_credentials(const store::ProcessImage& image, ThreadBatches& batches) {
  // 2 (readable by root only) cannot be asked for; 0 is the nearest, and no less private.
  batches[0].add("set whether it may be traced", SYS_prctl, PR_SET_DUMPABLE, image.dumpable == 1 ? 1 : 0, 0, 0, 0);
  for (size_t i = 0; i < image.threads.size(); ++i) {
    const int signal = i == 0 ? image.parent_death_signal : image.threads[i].parent_death_signal;
    if (i == 0 || signal != 0)
      batches[i].add("set the signal of the parent's end", SYS_prctl, PR_SET_PDEATHSIG, signal, 0, 0, 0);
  }
}

void set_through_proc(const store::ProcessImage& image, ProgressSink& progress) {
  auto write = [&](const char* name, const std::string& value) {
    auto fd = io::open_file(fmt::format("/proc/{}/{}", image.pid, name), O_WRONLY);
    Result<void> done = fd ? io::write_all(fd->get(), as_bytes(value), name) : Result<void>(fd.error());
    if (!done) progress.note(fmt::format("{} could not be set to {}: {}", name, value, done.error().text()));
  };
  auto current = io::read_file("/proc/self/oom_score_adj", 64);
  std::string wanted = std::to_string(image.oom_score_adj);
  if (!current || *current != wanted + "\n") write("oom_score_adj", wanted);
  write("coredump_filter", fmt::format("{:#x}", image.coredump_filter));
}

}  // namespace ckpt::restore
