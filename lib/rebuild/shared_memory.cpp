#include "lib/rebuild/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"

namespace ckpt::rebuild {

namespace {

struct Views {
  uint64_t size = 0;
  uint64_t count = 0;
  bool from_start = true;
};

/// A memfd would show under another name: this is the object that mmap makes, opened through the mapping.
Result<int> make_object(uint64_t size, Inherited& inherited) {
  constexpr const char* kSubject = "shared memory";
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return sys_error(kSubject, fmt::format("cannot make {} bytes", size));
  Mapping mapping(memory, size);
  auto start = reinterpret_cast<uint64_t>(memory);
  CKPT_TRY_ASSIGN(UniqueFd fd,
                  io::open_file(fmt::format("/proc/self/map_files/{:x}-{:x}", start, start + size), O_RDWR));
  return inherited.keep(std::move(fd), kSubject);
}

}  // namespace

std::map<uint64_t, int> make_shared_objects(const store::ProcessImage& image, Inherited& inherited, Reasons& reasons) {
  std::map<uint64_t, Views> objects;
  for (const auto& map : image.maps) {
    if (map.kind != store::MappingKind::kSharedAnonymous || map.shared_object == 0) continue;
    Views& views = objects[map.shared_object];
    views.size = std::max(views.size, map.file_offset + (map.end - map.start));
    views.count += 1;
    views.from_start = views.from_start && map.file_offset == 0;
  }
  std::map<uint64_t, int> out;
  for (const auto& [number, views] : objects) {
    if (views.count == 1 && views.from_start) continue;
    auto fd = make_object(views.size, inherited);
    if (fd) {
      out[number] = *fd;
    } else {
      reasons.add(fd.error());
    }
  }
  return out;
}

}  // namespace ckpt::rebuild
