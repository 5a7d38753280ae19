#include "tests/device/experiments/experiment.h"

#include <dirent.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>

namespace {

char work_folder[] = "/tmp/ckpt-experiment-XXXXXX";
pid_t owner;

/// What failed leaves it, with what it wrote there.
void remove_work_folder() {
  std::error_code ignored;
  if (getpid() == owner) std::filesystem::remove_all(work_folder, ignored);
}

}  // namespace

void experiment_begin(int, char** argv) {
  char* folder = mkdtemp(work_folder);
  if (folder == nullptr) exit(1);
  owner = getpid();
  atexit(remove_work_folder);
  char* both[] = {argv[0], folder, nullptr};
  target_init(2, both);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  driver_load();
}

uint64_t argument(int argc, char** argv, int index, uint64_t otherwise) {
  if (index >= argc) return otherwise;
  char* end = nullptr;
  uint64_t value = strtoull(argv[index], &end, 0);
  switch (*end) {
    case 'G': value <<= 10; [[fallthrough]];
    case 'M': value <<= 10; [[fallthrough]];
    case 'K': value <<= 10; break;
    default: break;
  }
  return value;
}

double seconds() { return static_cast<double>(now_ns()) * 1e-9; }

void report(const char* experiment, const std::string& name, double value, const char* unit) {
  printf("RESULT | %s | %s | %.4g | %s\n", experiment, name.c_str(), value, unit);
}

void send_fd(int socket, int fd) {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1, message.msg_control = control,
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  CHECK(sendmsg(socket, &message, 0) == 1);
}

int receive_fd(int socket) {
  char byte;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1, message.msg_control = control,
  message.msg_controllen = sizeof control;
  CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  CHECK(header != nullptr);
  int fd;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

void signal_other(int socket) {
  char byte = 1;
  CHECK(write(socket, &byte, 1) == 1);
}

void wait_other(int socket) {
  char byte;
  if (read(socket, &byte, 1) != 1) target_fail("the other process has ended");
}

CUmemAllocationProp properties_of(bool share) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  if (share) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

CUdeviceptr reserve_range(size_t size) {
  CUdeviceptr at = 0;
  CU(cuMemAddressReserve(&at, size, 0, 0, 0));
  return at;
}

void map_handle(const Mapped& memory, CUmemAccess_flags flags) {
  CU(cuMemMap(memory.at, memory.size, 0, memory.handle, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
  CU(cuMemSetAccess(memory.at, memory.size, &access, 1));
}

Mapped map_new(size_t size, bool share) {
  const CUmemAllocationProp prop = properties_of(share);
  Mapped made{reserve_range(size), size, 0};
  CU(cuMemCreate(&made.handle, size, &prop, 0));
  map_handle(made);
  return made;
}

std::vector<int> threads_of(int pid) {
  std::vector<int> found;
  DIR* folder = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  CHECK(folder != nullptr);
  while (dirent* entry = readdir(folder))
    if (entry->d_name[0] != '.') found.push_back(atoi(entry->d_name));
  closedir(folder);
  return found;
}

Look look_at(int pid) {
  Look look;
  const std::string process = "/proc/" + std::to_string(pid);
  std::ifstream maps(process + "/maps"), status(process + "/status");
  for (std::string line; std::getline(maps, line); ++look.mappings)
    look.device_mappings +=
        line.find("/dev/nvidia") != std::string::npos || line.find("standin-gpu") != std::string::npos;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) look.resident_kib = atol(line.c_str() + 6);
  DIR* folder = opendir((process + "/fd").c_str());
  CHECK(folder != nullptr);
  while (dirent* entry = readdir(folder)) {
    char name[256];
    ssize_t size = readlink((process + "/fd/" + entry->d_name).c_str(), name, sizeof name - 1);
    if (size <= 0) continue;
    name[size] = 0;
    ++look.descriptors;
    look.device_descriptors += strstr(name, "/dev/nvidia") != nullptr || strstr(name, "standin-gpu") != nullptr;
    look.pipes += strncmp(name, "pipe:", 5) == 0;
  }
  closedir(folder);
  return look;
}
