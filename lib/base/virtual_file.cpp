#include "lib/base/virtual_file.h"

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace ckpt::io {

namespace {

struct Registry {
  std::shared_mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::shared_ptr<const VirtualFile>> files;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::atomic<size_t> g_count = 0;

}  // namespace

void set_virtual_file(const struct stat& st, std::shared_ptr<const VirtualFile> file) {
  std::unique_lock lock(registry().mutex);
  auto& files = registry().files;
  if (file)
    files[{st.st_dev, st.st_ino}] = std::move(file);
  else
    files.erase({st.st_dev, st.st_ino});
  g_count = files.size();
}

std::shared_ptr<const VirtualFile> find_virtual_file(int fd) {
  struct stat st {};
  if (g_count == 0 || ::fstat(fd, &st) != 0) return nullptr;
  std::shared_lock lock(registry().mutex);
  auto found = registry().files.find({st.st_dev, st.st_ino});
  return found == registry().files.end() ? nullptr : found->second;
}

}  // namespace ckpt::io
