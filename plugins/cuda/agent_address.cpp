// Where the agent of a process listens.
#include "plugins/cuda/agent_address.h"

#include <fmt/format.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "lib/base/io.h"
#include "plugins/cuda/agent_protocol.h"

namespace ckpt::cuda {

namespace {

constexpr uint64_t kMaxProcFile = 64 << 20;

std::string lines_value(const std::string& text, std::string_view key) {
  const size_t at = text.find("\n" + std::string(key));
  if (at == std::string::npos) return {};
  const size_t start = at + 1 + key.size(), end = text.find('\n', start);
  return text.substr(start, end == std::string::npos ? end : end - start);
}

/// The process's pid in its own pid namespace: the last of NSpid.
Result<int> own_pid(int pid) {
  auto status = io::read_file(fmt::format("/proc/{}/status", pid), kMaxProcFile);
  if (!status) return fail(Code::kNotFound, fmt::format("process {}", pid), "no such process");
  const std::string all = lines_value(*status, "NSpid:");
  const size_t last = all.find_last_of(" \t");
  return all.empty() ? pid : std::atoi(all.substr(last == std::string::npos ? 0 : last + 1).c_str());
}

std::string environment_value(int pid, std::string_view key) {
  auto text = io::read_file(fmt::format("/proc/{}/environ", pid), kMaxProcFile);
  if (!text) return {};
  const std::string wanted = std::string(key) + "=";
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\0', at), text->size());
    if (text->compare(at, wanted.size(), wanted) == 0)
      return text->substr(at + wanted.size(), end - at - wanted.size());
    at = end + 1;
  }
  return {};
}

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

std::optional<Address> address_of(const std::string& path, bool abstract) {
  Address address;
  address.name.sun_family = AF_UNIX;
  const size_t skip = abstract ? 1 : 0;
  if (path.size() + 1 + skip > sizeof address.name.sun_path) return std::nullopt;
  std::memcpy(address.name.sun_path + skip, path.data(), path.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

/// What of the abstract namespace bears the process's number.
std::vector<Address> abstract_addresses(int pid, int inner) {
  std::vector<Address> found;
  auto table = io::read_file(fmt::format("/proc/{}/net/unix", pid), kMaxProcFile);
  if (!table) return found;
  const std::string prefix = fmt::format("@{}{}-", agent::kAddressPrefix, inner);
  for (size_t at = table->find(prefix); at != std::string::npos; at = table->find(prefix, at + 1)) {
    const std::string name = table->substr(at + 1, std::min(table->find('\n', at), table->size()) - at - 1);
    if (auto address = address_of(name, true)) found.push_back(*address);
  }
  return found;
}

/// Anybody may listen at an abstract address: only the process itself is talked to.
bool is_peer(int socket, int pid) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == pid;
}

}  // namespace

Result<UniqueFd> connect_to_agent(int pid) {
  const std::string subject = fmt::format("process {}", pid);
  CKPT_TRY_ASSIGN(const int inner, own_pid(pid));
  std::vector<Address> addresses = abstract_addresses(pid, inner);
  int refused = 0;
  UniqueFd
      folder;  // through it: with /proc/PID/root in front, the path of a socket may be longer than addresses can be
  if (const std::string named = environment_value(pid, "CKPT_RUN_DIR"); !named.empty()) {
    folder.reset(::open(fmt::format("/proc/{}/root/{}", pid, named).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder) refused = errno;
    else if (auto address = address_of(fmt::format("/proc/self/fd/{}/agent-{}", folder.get(), inner), false))
      addresses.push_back(*address);
  }
  for (const Address& address : addresses) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return sys_error(subject, "cannot make a socket");
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0) {
      refused = errno;
    } else if (is_peer(socket.get(), pid)) {
      return socket;
    }
  }
  if (refused == EAGAIN) return fail(Code::kBusy, subject, "its agent has other clients waiting");
  if (refused == EACCES || refused == EPERM) return sys_error(refused, subject, "cannot reach its agent");
  return Error(Code::kNotFound, subject, "has no agent of ckpt")
      .with_hint("programs started by `ckpt run` have one once they use CUDA");
}

}  // namespace ckpt::cuda
