#include "lib/state/files/capture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "lib/state/files/plain_devices.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/pids.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

namespace {

/// What an open file of these may be told to watch for (PSI): writing to it is how, and nothing tells.
bool may_watch_pressure(const Place& place) {
  if ((place.info.flags & O_ACCMODE) == O_RDONLY) return false;
  const bool named = place.link.find("/pressure/") != std::string::npos || place.link.ends_with(".pressure");
  struct statfs fs{};
  if (!named || ::statfs(place.access().c_str(), &fs) != 0) return false;
  const auto type = static_cast<unsigned long>(fs.f_type);
  return type == PROC_SUPER_MAGIC || type == CGROUP2_SUPER_MAGIC;
}

bool block_pressure(DescriptorContext& context, const Place& place) {
  if (!may_watch_pressure(place)) return false;
  context.block(place, "a file of pressure stall information (PSI) open for writing, which is not supported");
  return true;
}

/// F_NOTIFY makes the process the owner of the folder's descriptor, and nothing else has use for one.
Result<bool> has_owner_of_folder(const Place& place) {
  CKPT_TRY_ASSIGN(const UniqueFd theirs, DescriptorContext::duplicate(place));
  f_owner_ex owner{};
  return ::fcntl(theirs.get(), F_GETOWN_EX, &owner) == 0 && owner.pid != 0;
}

}  // namespace

Result<bool> take_file(DescriptorContext& context, const Place& place, const struct stat& st, Descriptor& d) {
  if (block_pressure(context, place)) return false;
  if (S_ISDIR(st.st_mode) && (place.info.flags & O_PATH) == 0) {
    CKPT_TRY_ASSIGN(const bool told, has_owner_of_folder(place));
    if (told)
      return context.block(place, "a folder with an owner to be told of changes (F_NOTIFY), which is not supported"),
             false;
  }
  auto file = context.walk.files.add(place.link, st, place.access());
  if (!file && !answers_no(file.error().code)) return std::move(file).error();
  if (!file) {
    const bool large = file.error().message.find("--ghost-limit") != std::string::npos;
    return context.block(place, file.error().text(), large ? "--ghost-limit" : ""), false;
  }
  d.kind = DescriptorKind::kFile;
  d.file = *file;
  d.written_by_process = (d.flags & O_ACCMODE) != O_RDONLY && S_ISREG(st.st_mode);
  return true;
}

namespace {

/// The process of the tree that has this number in a further pid namespace; -1: none.
int find_inside(const store::TreeImage& tree, int pid_namespace, int number) {
  const size_t level = state::pid_namespaces_above(tree.namespaces, pid_namespace).size();
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    const std::vector<int> own = state::pid_namespaces_of(tree, i);
    const std::vector<int>& inner = tree.processes[i].threads[0].inner_tids;
    const bool in = own.size() >= level && own[level - 1] == pid_namespace;
    if (in && inner[level - 1] == number) return static_cast<int>(i);
  }
  return -1;
}

/// What is mounted last at a place lies above all others there: whether it is what a process finds at /proc.
bool is_proc_of(const Walk& walk, size_t process, int pid_namespace) {
  const int index = walk.mounts_of(process);
  if (index < 0) return false;
  const store::Mounts& all = walk.out.image.namespaces.further[static_cast<size_t>(index)].mounts;
  const auto top = std::find_if(all.mounts.rbegin(), all.mounts.rend(),
                                [](const store::Mount& mount) { return mount.point == "/proc"; });
  return top != all.mounts.rend() && top->root == "/" &&
         all.filesystems[static_cast<size_t>(top->filesystem)].pid_namespace == pid_namespace;
}

/// What it shows of other namespaces is of those that its process, or the one that it is about, is in when it is opened
/// again: of further ones these enter later. Null: there is nothing of that.
const char* shown_namespace(const store::TreeImage& tree, const std::string& link, size_t holder, int about) {
  auto is_apart = [&](const char* kind) {
    return state::further_of(tree, holder, kind) >= 0 ||
           (about >= 0 && state::further_of(tree, static_cast<size_t>(about), kind) >= 0);
  };
  const std::string folder = link + "/";
  auto lies_in = [&](const char* path) { return folder.starts_with(path); };
  if (folder.find("/net/") != std::string::npos && is_apart("net")) return "network";
  const bool shows_ipc = lies_in("/proc/sysvipc/") || lies_in("/proc/sys/fs/mqueue/") || lies_in("/proc/sys/kernel/");
  if (shows_ipc && is_apart("ipc")) return "IPC";
  return lies_in("/proc/sys/kernel/") && is_apart("uts") ? "UTS" : nullptr;
}

/// Of whatever its /proc shows: nothing of that is there before the processes are.
bool take_inner_proc_file(DescriptorContext& context, const Place& place, int pid_namespace, int pid, Descriptor& d) {
  if (!is_proc_of(context.walk, place.process, pid_namespace))
    return context.block(place, "of the /proc of a further pid namespace, by another path (" + place.link + ")"), false;
  const int about = pid != 0 ? find_inside(context.out.image, pid_namespace, pid) : -1;
  if (pid != 0 && about < 0)
    return context.block(place, "a file of another process (" + place.link + ")"), false;
  if (const char* kind = shown_namespace(context.out.image, place.link, place.process, about); kind != nullptr)
    return context.block(place, fmt::format("a file that shows a further {} namespace ({}), which is not supported",
                                            kind, place.link)),
           false;
  d.kind = DescriptorKind::kProcFile;
  d.external = place.link, d.object = pid_namespace;
  return true;
}

}  // namespace

Result<bool> take_proc_file(DescriptorContext& context, const Place& place, const struct stat& st, Descriptor& d) {
  if (block_pressure(context, place)) return false;
  int pid = 0;
  const char* number = place.link.c_str() + std::string_view("/proc/").size();
  auto [end, ec] = std::from_chars(number, number + std::strlen(number), pid);
  const int inner = context.walk.files.inner_proc_of(st);
  if (inner >= 0) return take_inner_proc_file(context, place, inner, ec == std::errc() ? pid : 0, d);
  if (ec != std::errc()) return take_file(context, place, st, d);
  if (context.out.find(pid) < 0) return context.block(place, "a file of another process (" + place.link + ")"), false;
  d.kind = DescriptorKind::kProcFile;
  d.external = place.link;
  return true;
}

Result<bool> take_device(DescriptorContext& context, const Place& place, const struct stat& st, Descriptor& d) {
  constexpr unsigned kTty = 4, kTtyAux = 5, kPtySlaveFirst = 136, kPtySlaveLast = 143;
  const unsigned device_major = major(st.st_rdev);
  if (state::is_plain_device(st.st_mode, st.st_rdev)) {
    CKPT_TRY_ASSIGN(bool ok, take_file(context, place, st, d));
    d.kind = DescriptorKind::kDevice;
    d.written_by_process = false;
    return ok;
  }
  bool terminal = device_major == kTty || device_major == kTtyAux ||
                  (device_major >= kPtySlaveFirst && device_major <= kPtySlaveLast);
  if (terminal) {
    d.kind = DescriptorKind::kTerminal;
    return true;
  }
  if (place.link.rfind("/dev/nvidia", 0) == 0) {
    if (context.walk.options.gpus_leave)
      context.out.gpu_files[place.process].insert(place.link);
    else
      context.block(place, "a GPU (" + place.link + ")");
    return false;
  }
  return context.block(place, "a device (" + place.link + "), which is not supported"), false;
}

}  // namespace ckpt::capture
