// What the driver does not checkpoint. Argument: managed, or ipc (a child opens memory of ours).
#include "tests/device/programs/program.h"

static int open_it() {
  while (access("handle", F_OK) != 0) sleep_ms(2);
  CUipcMemHandle handle;
  int fd = open("handle", O_RDONLY | O_CLOEXEC);
  CHECK(read(fd, &handle, sizeof handle) == sizeof handle);
  close(fd);
  driver_start();
  Words words(kernels_load());
  CUdeviceptr there;
  CU(cuIpcOpenMemHandle_v2(&there, handle, 1));
  words.check(there, 2 << 20, 5);
  child_wait(1);
  words.check(there, 2 << 20, 5);
  return 0;
}

static void with_ipc() {
  driver_load();
  // Forked before the driver is started: it does not survive that.
  pid_t child = fork();
  if (child == 0) _exit(open_it());
  driver_start();
  Words words(kernels_load());
  CUdeviceptr at;
  CUipcMemHandle handle;
  CU(cuMemAlloc_v2(&at, 2 << 20));
  words.write(at, 2 << 20, 5);
  CU(cuCtxSynchronize());
  CU(cuIpcGetMemHandle(&handle, at));
  int fd = open(".handle", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  CHECK(write(fd, &handle, sizeof handle) == sizeof handle);
  close(fd);
  CHECK(rename(".handle", "handle") == 0);
  char name[32];
  snprintf(name, sizeof name, "child.%d", child);
  while (access(name, F_OK) != 0) sleep_ms(2);
  target_ready();
  target_wait(nullptr);
  release(1);
  expect_exit(child, 0);
  target_pass();
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (argc > 2 && strcmp(argv[2], "ipc") == 0) with_ipc();
  driver_start();
  kernels_load();
  CUdeviceptr at;
  CU_OR_SKIP(cuMemAllocManaged(&at, 4 << 20, kMemAttachGlobal));
  auto* words = reinterpret_cast<uint64_t*>(at);
  words[17] = 4711;
  target_ready();
  target_wait(nullptr);
  CHECK_EQUAL(words[17], 4711);
  target_pass();
}
