#include "lib/state/files/tracker_channel.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lib/proc/procfs.h"

namespace ckpt::state {

namespace {

/// An address that leads through the descriptor of the folder: it is as long as it is anywhere.
sockaddr_un address_of(int folder, const std::string& name) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", folder, name);
  path.copy(out.sun_path, sizeof out.sun_path - 1);
  return out;
}

}  // namespace

Result<std::string> name_of_process(int pid) {
  CKPT_TRY_ASSIGN(const proc::Stat stat, proc::read_stat(pid));
  return fmt::format("{}-{}", pid, stat.start_time);
}

Result<std::string> name_of_tracker(int root) {
  CKPT_TRY_ASSIGN(const std::string name, name_of_process(root));
  return kTrackerSocket + name;
}

std::vector<std::string> trackers_in(int folder) {
  std::error_code ec;
  std::vector<std::string> out;
  std::filesystem::directory_iterator it(fmt::format("/proc/self/fd/{}", folder), ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (name.starts_with(kTrackerSocket)) out.push_back(std::move(name));
  }
  return out;
}

Result<UniqueFd> listen_as_tracker(int folder, const std::string& name) {
  constexpr int kWaiting = 16;
  UniqueFd out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(folder, name);
  if (!out || ::bind(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(out.get(), kWaiting) != 0)
    return sys_error(name, "cannot be listened at");
  return out;
}

UniqueFd connect_to_tracker(int folder, const std::string& name, int flags) {
  UniqueFd out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  const sockaddr_un address = address_of(folder, name);
  if (out && ::connect(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return out;
  return UniqueFd(-errno);
}

void remove_old_trackers(int folder) {
  for (const std::string& name : trackers_in(folder)) {
    int pid = 0;
    if (std::sscanf(name.c_str(), "track-%d-", &pid) != 1 || pid <= 0) continue;
    const auto now = name_of_tracker(pid);
    if (now && *now == name) continue;
    if (connect_to_tracker(folder, name, SOCK_NONBLOCK).get() == -ECONNREFUSED) ::unlinkat(folder, name.c_str(), 0);
  }
}

bool send_all(int socket, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t sent = ::send(socket, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace ckpt::state
