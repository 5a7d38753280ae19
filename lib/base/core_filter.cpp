#include "lib/base/core_filter.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/base/unique_fd.h"

namespace ckpt {

namespace {

constexpr const char* kFilter = "/proc/self/coredump_filter";
char g_former[16];  ///< as the kernel says it: eight hex digits and a line's end, without the 0x that it wants

bool write_filter(const char* text, size_t size) {
  const UniqueFd fd(::open(kFilter, O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), text, size) == static_cast<ssize_t>(size);
}

}  // namespace

void keep_memory_out_of_cores() {
  if (g_former[0] != '\0') return;
  const UniqueFd fd(::open(kFilter, O_RDONLY | O_CLOEXEC));
  g_former[0] = '0', g_former[1] = 'x';
  const ssize_t size = fd ? ::read(fd.get(), g_former + 2, sizeof g_former - 3) : 0;
  if (size > 0) (void)write_filter("0", 1);
  else g_former[0] = '\0';
}

void put_core_filter_back() {
  size_t size = 0;
  while (g_former[size] != '\0') ++size;
  if (size != 0) (void)write_filter(g_former, size);
}

}  // namespace ckpt
