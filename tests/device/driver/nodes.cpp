// Settings::nodes: what a driver has open and mapped of its devices. Nothing here allocates.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

constexpr int kNumber = 650;
constexpr size_t kPage = 4096;

struct DeviceFile {
  int fd = -1;
  void* at = nullptr;  ///< kept while it is let go of
};
DeviceFile nodes[kMaxGpus];

bool take(int gpu) {
  char path[32];
  ::snprintf(path, sizeof(path), "/dev/nvidia%d", gpu);
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return true;
  DeviceFile& node = nodes[gpu];
  node.fd = ::dup3(fd, kNumber + gpu, O_CLOEXEC);
  ::close(fd);
  const int where = node.at == nullptr ? 0 : MAP_FIXED_NOREPLACE;
  void* at = ::mmap(node.at, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | where, node.fd, 0);
  if (node.fd < 0 || at == MAP_FAILED) return false;
  node.at = at;
  return true;
}

}  // namespace

bool nodes_take() {
  for (int gpu = 0; settings().nodes && gpu < settings().gpus; ++gpu)
    if (!take(gpu)) return false;
  return true;
}

void nodes_drop() {
  for (DeviceFile& node : nodes) {
    if (node.fd < 0) continue;
    ::munmap(node.at, kPage);
    ::close(node.fd);
    node.fd = -1;
  }
}

}  // namespace ckpt::standin
