// Descriptors that lead to something with a name: files, devices, files of /proc, POSIX message queues.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <charconv>
#include <cstring>

#include "lib/capture/inventory_descriptors.h"
#include "lib/capture/posix_queue.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

/// Once for each file, however often it is open.
Result<struct stat> DescriptorInventory::stat_behind(const Place& place) {
  const proc::FdInfo& info = place.info;
  const std::string key = fmt::format("{} {} {}", info.inode, info.mount_id, place.link);
  auto known = stats_.find(key);
  if (known != stats_.end()) return known->second;
  const std::string access = fmt::format("/proc/{}/fd/{}", place.pid, place.fd);
  struct stat st{};
  if (::stat(access.c_str(), &st) != 0) return sys_error(access, "cannot stat");
  if (info.inode != 0) stats_.emplace(key, st);  // fdinfo tells it since 5.14
  return st;
}

Result<bool> DescriptorInventory::take_file(const Place& place, const struct stat& st, Descriptor& d) {
  auto file = walk_.files.add(place.link, st, fmt::format("/proc/{}/fd/{}", place.pid, place.fd));
  if (!file && file.error().code != Code::kAnswerNo) return std::move(file).error();
  if (!file) {
    const bool large = file.error().message.find("--ghost-limit") != std::string::npos;
    return block(place, file.error().text(), large ? "--ghost-limit" : ""), false;
  }
  d.kind = DescriptorKind::kFile;
  d.file = *file;
  d.written_by_process = (d.flags & O_ACCMODE) != O_RDONLY && S_ISREG(st.st_mode);
  return true;
}

/// "/proc/12/status" of a process in the tree is opened again by the process that holds it; what belongs to no process
/// is a file like others.
Result<bool> DescriptorInventory::take_proc_file(const Place& place, const struct stat& st, Descriptor& d) {
  int pid = 0;
  const char* number = place.link.c_str() + std::string_view("/proc/").size();
  auto [end, ec] = std::from_chars(number, number + std::strlen(number), pid);
  if (ec != std::errc()) return take_file(place, st, d);
  if (out_.find(pid) < 0) return block(place, "a file of another process (" + place.link + ")"), false;
  d.kind = DescriptorKind::kProcFile;
  d.external = place.link;
  return true;
}

Result<bool> DescriptorInventory::take_device(const Place& place, const struct stat& st, Descriptor& d) {
  constexpr unsigned kMemory = 1, kTty = 4, kTtyAux = 5, kPtySlaveFirst = 136, kPtySlaveLast = 143;
  unsigned device_major = major(st.st_rdev), device_minor = minor(st.st_rdev);
  bool plain = device_major == kMemory && (device_minor == 3 || device_minor == 5 || (device_minor >= 7 && device_minor <= 9));
  if (plain) {  // null, zero, full, random, urandom
    CKPT_TRY_ASSIGN(bool ok, take_file(place, st, d));
    d.kind = DescriptorKind::kDevice;
    d.written_by_process = false;
    return ok;
  }
  bool terminal = device_major == kTty || device_major == kTtyAux || (device_major >= kPtySlaveFirst && device_major <= kPtySlaveLast);
  if (terminal) {
    d.kind = DescriptorKind::kTerminal;
    return true;
  }
  if (starts_with(place.link, "/dev/nvidia")) {
    if (!walk_.options.gpus_leave) block(place, "a GPU (" + place.link + ")");
    return false;
  }
  return block(place, "a device (" + place.link + "), which is not supported"), false;
}

Result<bool> DescriptorInventory::take_external(const Place& place, std::string name, const std::string& what, Descriptor& d) {
  if (!walk_.options.shell_job) return block(place, what, "--shell-job"), false;
  d.kind = DescriptorKind::kExternal;
  d.external = std::move(name);
  return true;
}

Result<bool> DescriptorInventory::is_posix_queue(const Place& place, const struct stat& st) {
  auto [known, is_new] = queue_devices_.emplace(st.st_dev, false);
  if (is_new) {
    struct statfs fs{};
    constexpr long kMqueueMagic = 0x19800202;
    known->second = ::statfs(fmt::format("/proc/{}/fd/{}", place.pid, place.fd).c_str(), &fs) == 0 && fs.f_type == kMqueueMagic;
  }
  return known->second;
}

Result<bool> DescriptorInventory::take_posix_queue(const Place& place, Descriptor& d) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
  struct stat st{};
  if (::fstat(theirs.get(), &st) != 0) return sys_error(place.link, "cannot stat");
  d.kind = DescriptorKind::kPosixQueue;
  auto [known, is_new] = queues_.emplace(st.st_ino, -1);
  if (is_new) {
    auto queue = describe_posix_queue(theirs.get(), place.link, walk_.options.frozen);
    if (!queue) return block(place, queue.error().text()), false;
    known->second = static_cast<int>(out_.image.posix_queues.size());
    out_.image.posix_queues.push_back(std::move(*queue));
  }
  d.object = known->second;
  return d.object >= 0;
}

}  // namespace ckpt::capture
