#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "plugins/interposer/driver.h"

namespace ckpt::interposer {

namespace {

constexpr const char* kFolders[] = {"/usr/lib/x86_64-linux-gnu",
                                    "/usr/lib64",
                                    "/usr/lib",
                                    "/usr/local/nvidia/lib64",
                                    "/usr/lib/wsl/lib",
                                    "/run/opengl-driver/lib",
                                    "/lib64",
                                    "/lib/x86_64-linux-gnu"};
constexpr const char* kDriver = "libcuda.so.1";
constexpr off_t kMaxCache = 64 << 20;

bool same_file(const char* path, const struct stat& other) {
  struct stat found;
  return ::stat(path, &found) == 0 && found.st_dev == other.st_dev && found.st_ino == other.st_ino;
}

/// A 64-bit x86 library, and not this one.
bool usable(const std::string& path) {
  static const Dl_info self = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&find_driver), &info);
    return info;
  }();
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  Elf64_Ehdr head{};
  struct stat about{};
  const bool read = ::read(fd, &head, sizeof head) == sizeof head && ::fstat(fd, &about) == 0;
  ::close(fd);
  return read && std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_ident[EI_CLASS] == ELFCLASS64 &&
         head.e_machine == EM_X86_64 && !(self.dli_fname != nullptr && same_file(self.dli_fname, about));
}

std::string in_path_list(const char* list) {
  for (std::string rest = list == nullptr ? "" : list; !rest.empty();) {
    const size_t end = rest.find_first_of(":;");
    const std::string folder = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    if (std::string path = folder + "/" + kDriver; !folder.empty() && usable(path)) return path;
  }
  return {};
}

// ld.so.cache as glibc 2.2 and later write it (dl-cache.h): a header, entries, strings at offsets from the header.
struct CacheHeader {
  char magic[20];  ///< "glibc-ld.so.cache1.1"
  uint32_t count, strings;
  uint32_t unused[5];
};
struct CacheEntry {
  int32_t flags;
  uint32_t key, value, os_version;
  uint64_t hwcap;
};
constexpr int32_t kFlagsElfX8664 = 0x0303;

std::string in_loader_cache() {
  const int fd = ::open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  struct stat about{};
  std::string cache;
  if (::fstat(fd, &about) == 0 && about.st_size > 0 && about.st_size < kMaxCache) {
    cache.resize(about.st_size);
    if (::pread(fd, cache.data(), cache.size(), 0) != about.st_size) cache.clear();
  }
  ::close(fd);
  constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
  const size_t start = cache.find(kMagic);
  CacheHeader header;
  if (start == std::string::npos || cache.size() - start < sizeof header) return {};
  std::memcpy(&header, cache.data() + start, sizeof header);
  if (header.count > (cache.size() - start - sizeof header) / sizeof(CacheEntry)) return {};
  auto text = [&](uint32_t offset) { return offset < cache.size() - start ? cache.c_str() + start + offset : ""; };
  for (uint32_t i = 0; i < header.count; ++i) {
    CacheEntry entry;
    std::memcpy(&entry, cache.data() + start + sizeof header + i * sizeof entry, sizeof entry);
    if (entry.flags != kFlagsElfX8664 || std::strcmp(text(entry.key), kDriver) != 0) continue;
    if (std::string path = text(entry.value); usable(path)) return path;
  }
  return {};
}

}  // namespace

std::string find_driver() {
  if (const char* named = std::getenv("CKPT_CUDA_DRIVER"); named != nullptr && *named != 0)
    return usable(named) ? named : "";
  if (std::string path = in_path_list(std::getenv("LD_LIBRARY_PATH")); !path.empty()) return path;
  if (std::string path = in_loader_cache(); !path.empty()) return path;
  for (const char* folder : kFolders) {
    if (std::string path = std::string(folder) + "/" + kDriver; usable(path)) return path;
  }
  return {};
}

}  // namespace ckpt::interposer
