#include "lib/base/virtual_file.h"

#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <new>
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

/// A fork finds the registry whole, whatever other threads did. Its lock is made anew there: glibc knows a writer by
/// its thread id, which is another one in the child.
void outlive_forks() {
  static const int once = ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                                           [] { new (&registry().mutex) std::shared_mutex; });
  (void)once;
}

std::atomic<size_t> g_count = 0;
int g_needed = -1;

}  // namespace

void set_virtual_file(const struct stat& st, std::shared_ptr<const VirtualFile> file) {
  outlive_forks();
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

void set_needed_descriptor(int fd) { g_needed = fd; }

int needed_descriptor() { return g_needed; }

}  // namespace ckpt::io
