// Entering and leaving the driver, what the environment asks of it, and faults on request.
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

std::atomic<uint64_t> pending_work{0};
std::atomic<bool> initialised{false};

namespace {

struct Fault {
  char call[64];
  std::atomic<int> left;
  int code;
  bool die;
};
constexpr int kMaxFaults = 16;
Fault faults[kMaxFaults];
int fault_count = 0;

std::atomic<uint32_t> closed{0};
std::atomic<int> inside{0};
thread_local int depth = 0;

uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = ::getenv(name);
  return text != nullptr && *text != 0 ? ::strtoull(text, nullptr, 0) : otherwise;
}

/// call:n:code[,..]
void read_faults() {
  const char* text = ::getenv("CKPT_STANDIN_FAULT");
  std::string all = text == nullptr ? "" : text;
  for (size_t at = 0; at < all.size() && fault_count < kMaxFaults;) {
    size_t end = std::min(all.find(',', at), all.size());
    std::string one = all.substr(at, end - at);
    at = end + 1;
    size_t first = one.find(':'), second = one.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos || first >= sizeof(Fault::call)) continue;
    Fault& fault = faults[fault_count++];
    ::memcpy(fault.call, one.data(), first);
    fault.left = std::atoi(one.c_str() + first + 1);
    std::string code = one.substr(second + 1);
    fault.die = code == "die";
    fault.code = code == "failed" ? -1 : code == "hang" ? -2 : std::atoi(code.c_str());
  }
}

bool unkind(const char* what) {
  const char* text = ::getenv("CKPT_STANDIN_UNKIND");
  return text != nullptr && ("," + std::string(text) + ",").find("," + std::string(what) + ",") != std::string::npos;
}

Settings read_settings() {
  Settings all;
  all.gpus = static_cast<int>(std::min<uint64_t>(number("CKPT_STANDIN_GPUS", 1), kMaxGpus));
  const char* capacity = ::getenv("CKPT_STANDIN_CAPACITY");  // one for all, or one for each
  uint64_t bytes = uint64_t{8} << 30;
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) {
    if (capacity != nullptr && *capacity != 0) {
      char* end = nullptr;
      bytes = ::strtoull(capacity, &end, 0);
      capacity = *end == ',' ? end + 1 : nullptr;
    }
    all.capacity[gpu] = bytes;
  }
  all.version = static_cast<int>(number("CKPT_STANDIN_VERSION", kCudaVersion));
  all.seed = number("CKPT_STANDIN_SEED", 0);
  all.delay_us = static_cast<unsigned>(number("CKPT_STANDIN_DELAY_US", 200));
  if (const char* folder = ::getenv("CKPT_STANDIN_DIR")) all.folder = folder;
  all.lock_ms = static_cast<unsigned>(number("CKPT_STANDIN_LOCK_MS", 0));
  all.nvml = number("CKPT_STANDIN_NVML", 1) != 0;
  all.nodes = unkind("nodes"), all.stranger = unkind("stranger"), all.out_of_step = unkind("out_of_step");
  all.reexport = unkind("reexport");
  read_faults();
  return all;
}

/// For good; a file "hangs" tells a test that it has come to that.
[[noreturn]] void hang() {
  if (const std::string& folder = settings().folder; !folder.empty())
    ::close(::open((folder + "/hangs").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  while (true) ::pause();
}

}  // namespace

Settings& settings() {
  static Settings& all = *new Settings(read_settings());
  return all;
}

CUuuid uuid_of(int gpu) {
  CUuuid uuid;
  ::memcpy(uuid.bytes, "CKPT-STANDIN-GP0", sizeof(uuid.bytes));
  uuid.bytes[15] = static_cast<char>('0' + gpu);
  return uuid;
}

CUresult fault(const char* call) {
  settings();
  for (int i = 0; i < fault_count; ++i) {
    if (::strcmp(faults[i].call, call) != 0 || faults[i].left.fetch_sub(1) != 1) continue;
    if (faults[i].die) ::kill(::getpid(), SIGKILL);
    if (faults[i].code == -2) hang();
    return static_cast<CUresult>(faults[i].code);
  }
  return CUDA_SUCCESS;
}

std::recursive_mutex& lock() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return mutex;
}

ApiCall::ApiCall(const char* name, bool needs_init) {
  if (depth++ == 0) {
    for (;;) {
      inside.fetch_add(1);
      if (closed.load() == 0) break;
      inside.fetch_sub(1);
      ::syscall(SYS_futex, &closed, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
    }
    refused_ = fault(name);
  }
  if (refused_ == CUDA_SUCCESS && needs_init && !initialised.load()) refused_ = CUDA_ERROR_NOT_INITIALIZED;
}

ApiCall::~ApiCall() {
  if (--depth == 0) inside.fetch_sub(1);
}

void gate_close() { closed.store(1); }

void gate_open() {
  closed.store(0);
  ::syscall(SYS_futex, &closed, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

bool gate_quiet() { return inside.load() == 0; }

}  // namespace ckpt::standin
