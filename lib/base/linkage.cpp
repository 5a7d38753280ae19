#include "lib/base/linkage.h"

#include <link.h>
#include <nss.h>

#include <algorithm>

namespace ckpt {

namespace {

/// Of the program itself, which is the first that is told: the loader that it names makes it a dynamic one.
int note_loader(dl_phdr_info* program, size_t, void* out) {
  const ElfW(Phdr)* end = program->dlpi_phdr + program->dlpi_phnum;
  auto names_loader = [](const ElfW(Phdr)& segment) { return segment.p_type == PT_INTERP; };
  *static_cast<bool*>(out) = std::any_of(program->dlpi_phdr, end, names_loader);
  return 1;  // no further objects
}

}  // namespace

bool linked_statically() {
  bool has_loader = false;
  ::dl_iterate_phdr(note_loader, &has_loader);
  return !has_loader;
}

Result<void> check_loads_libraries(const std::string& library) {
  if (!linked_statically()) return {};
  return Error(Code::kUnsupported, library,
               "cannot be loaded: this ckpt is linked statically, without GPUs and nftables")
      .with_hint("the ckpt of the Debian package, or built from source, has both");
}

void keep_look_ups_to_files() {
  if (!linked_statically()) return;
  for (const char* database : {"passwd", "group", "initgroups"}) (void)::__nss_configure_lookup(database, "files");
}

}  // namespace ckpt
