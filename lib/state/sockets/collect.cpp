#include "lib/state/sockets/collect.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace ckpt::capture {

namespace {

SocketCaptureOptions socket_options(const InventoryOptions& options) {
  return {options.frozen, options.sockets.tcp_established, options.sockets.tcp_close, options.sockets.external_unix};
}

}  // namespace

SocketCollector::SocketCollector(DescriptorContext& context, std::function<Result<int>(UniqueFd)> take_right)
    : context_(context), sockets_(socket_options(context.walk.options), std::move(take_right)) {}

void SocketCollector::add(const Place& place, UniqueFd theirs, int index) {
  int waiting = 0;
  hold_data_ = hold_data_ || (::ioctl(theirs.get(), FIONREAD, &waiting) == 0 && waiting > 0);
  const bool in_flight = place.pid == ::getpid();
  std::string& name = names_[place.pid];
  if (name.empty()) name = proc::describe_pid(place.pid);
  std::string subject =
      in_flight ? "a descriptor in flight" : fmt::format("process {}, descriptor {}", name, place.fd);
  const int holder = in_flight ? context_.walk.members[0].entry.pid : place.pid;
  sockets_.add({std::move(theirs), index, holder, std::move(subject)});
  context_.out.image.descriptors[static_cast<size_t>(index)].object = static_cast<int>(added_++);
}

Result<void> SocketCollector::settle() {
  if (added_ == 0) return {};
  CKPT_TRY(sockets_.run());
  for (const Blocker& blocker : sockets_.blockers) {
    if (blocker.flag != "--ext-unix-sk" || !may_hold_descriptors()) context_.out.blockers.push_back(blocker);
  }
  context_.out.notes.insert(context_.out.notes.end(), sockets_.notes.begin(), sockets_.notes.end());
  for (size_t index : sockets_.established()) {
    UniqueFd fd(::fcntl(sockets_.fd(index), F_DUPFD_CLOEXEC, 0));
    if (!fd) return sys_error("socket", "cannot be duplicated");
    context_.out.connections.push_back(std::move(fd));
  }
  context_.out.image.sockets = std::move(sockets_.sockets);
  context_.out.socket_contents = std::move(sockets_.contents);
  return {};
}

}  // namespace ckpt::capture
