#include "lib/state/files/capture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <charconv>
#include <cstring>

#include "lib/state/files/plain_devices.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

Result<bool> take_file(DescriptorContext& context, const Place& place, const struct stat& st, Descriptor& d) {
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

Result<bool> take_proc_file(DescriptorContext& context, const Place& place, const struct stat& st, Descriptor& d) {
  int pid = 0;
  const char* number = place.link.c_str() + std::string_view("/proc/").size();
  auto [end, ec] = std::from_chars(number, number + std::strlen(number), pid);
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
