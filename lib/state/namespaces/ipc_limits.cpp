#include "lib/state/namespaces/ipc_limits.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/run_as.h"

namespace ckpt::state {

namespace {

/// Below /proc/sys.
constexpr const char* kIpcLimits[] = {"kernel/shmmax",
                                      "kernel/shmall",
                                      "kernel/shmmni",
                                      "kernel/shm_rmid_forced",
                                      "kernel/msgmax",
                                      "kernel/msgmni",
                                      "kernel/msgmnb",
                                      "kernel/sem",
                                      "fs/mqueue/queues_max",
                                      "fs/mqueue/msg_max",
                                      "fs/mqueue/msgsize_max",
                                      "fs/mqueue/msg_default",
                                      "fs/mqueue/msgsize_default"};

std::map<std::string, std::string> read_all() {
  constexpr uint64_t kLimit = 4096;
  std::map<std::string, std::string> out;
  for (const char* path : kIpcLimits) {
    auto text = io::read_file(std::string("/proc/sys/") + path, kLimit);  // a kernel may lack one kind of them
    if (text) out[path] = std::move(*text);
  }
  return out;
}

/// Segments that nobody has attached end with it, also those that are just being made again.
constexpr const char* kEndsUnattached = "kernel/shm_rmid_forced";

/// Of the tree that this process makes.
std::optional<store::KernelSetting>& late_limit() {
  static std::optional<store::KernelSetting> limit;
  return limit;
}

Result<void> write(const store::KernelSetting& limit, bool is_users) {
  const std::string path = "/proc/sys/" + limit.path;
  if (is_users) {
    // Its root alone may: not who has all rights around it.
    CKPT_TRY_ASSIGN(const int error, restore::run_in_user_namespace([&] {
                      const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
                      if (!file) return errno;
                      return ::write(file.get(), limit.value.data(), limit.value.size()) < 0 ? errno : 0;
                    }));
    return error == 0 ? Result<void>() : sys_error(error, path, "cannot be written");
  }
  CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(path, O_WRONLY));
  return io::write_all(file.get(), as_bytes(limit.value), path);
}

}  // namespace

namespace {

bool is_trees_users() {
  const TreeUser* user = tree_user();
  return user != nullptr && user->owns("ipc");
}

}  // namespace

Result<std::vector<store::KernelSetting>> read_ipc_limits() {
  std::map<std::string, std::string> fresh;
  Result<void> made;
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    if (::unshare(CLONE_NEWIPC) != 0) made = sys_error("IPC namespace", "cannot be made");
    else fresh = read_all();
  });
  if (!started) return no_thread("");
  apart.join();
  CKPT_TRY(std::move(made));
  std::vector<store::KernelSetting> out;
  for (const auto& [path, value] : read_all()) {
    if (const auto same = fresh.find(path); same != fresh.end() && same->second != value) out.push_back({path, value});
  }
  return out;
}

Result<void> validate_ipc_limits(const std::vector<store::KernelSetting>& limits) {
  for (const store::KernelSetting& limit : limits) {
    if (std::find(std::begin(kIpcLimits), std::end(kIpcLimits), limit.path) == std::end(kIpcLimits))
      return fail(Code::kCorrupt, limit.path, "is no limit of an IPC namespace");
  }
  return {};
}

Result<void> write_ipc_limits(const std::vector<store::KernelSetting>& limits) {
  for (const store::KernelSetting& limit : limits) {
    if (limit.path == kEndsUnattached) late_limit() = limit;
    else CKPT_TRY(write(limit, is_trees_users()));
  }
  return {};
}

Result<void> write_all_ipc_limits(const std::vector<store::KernelSetting>& limits) {
  for (const store::KernelSetting& limit : limits) CKPT_TRY(write(limit, tree_user() != nullptr));
  return {};
}

Result<void> write_late_ipc_limit() {
  const std::optional<store::KernelSetting> late = std::exchange(late_limit(), std::nullopt);
  return late ? write(*late, is_trees_users()) : Result<void>();
}

}  // namespace ckpt::state
