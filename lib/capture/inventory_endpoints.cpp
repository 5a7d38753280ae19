// Terminals and sockets: collected first, described together, since two ends make one connection.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "lib/capture/inventory_descriptors.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

Result<void> DescriptorInventory::add_terminal(const Place& place, int index) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
  terminals_.push_back({place, index, std::move(theirs)});
  return {};
}

/// All of them at once: two ends make one terminal. One whose master is outside is of the surroundings.
Result<void> DescriptorInventory::take_terminals() {
  if (terminals_.empty()) return {};
  std::vector<int> fds;
  for (const OpenTerminal& open : terminals_) fds.push_back(open.fd.get());
  CKPT_TRY_ASSIGN(TerminalsFound found, describe_terminals(fds, walk_.options.frozen));
  for (size_t i = 0; i < terminals_.size(); ++i) {
    const Place& place = terminals_[i].place;
    Descriptor& d = out_.image.descriptors[static_cast<size_t>(terminals_[i].descriptor)];
    if (found.ends[i].terminal < 0) {
      CKPT_TRY(take_external(place, "tty " + place.link, "a terminal (" + place.link + ") of the surroundings", d));
      continue;
    }
    d.object = static_cast<int>(out_.image.terminal_ends.size());
    out_.image.terminal_ends.push_back(found.ends[i]);
  }
  for (const auto& [index, why] : found.refused) block(terminals_[index].place, why);
  out_.image.terminals = std::move(found.terminals);
  out_.notes.insert(out_.notes.end(), found.notes.begin(), found.notes.end());
  if (walk_.options.earlier != nullptr) return {};
  std::vector<int> pids;
  for (const Member& member : walk_.members) pids.push_back(member.entry.pid);
  std::sort(pids.begin(), pids.end());
  for (const auto& [index, who] : outside_users_of_terminals(out_.image.terminals, pids)) {
    out_.blockers.push_back({fmt::format("terminal /dev/pts/{}", index), "is in use by " + who + ", which is outside", ""});
  }
  return {};
}

/// `theirs`: a duplicate.
void DescriptorInventory::add_socket(const Place& place, UniqueFd theirs, int index) {
  int waiting = 0;
  sockets_hold_data_ = sockets_hold_data_ || (::ioctl(theirs.get(), FIONREAD, &waiting) == 0 && waiting > 0);
  const bool in_flight = place.pid == ::getpid();
  std::string& name = names_[place.pid];
  if (name.empty()) name = proc::describe_pid(place.pid);
  std::string subject = in_flight ? "a descriptor on its way" : fmt::format("process {}, descriptor {}", name, place.fd);
  const int holder = in_flight ? walk_.members[0].entry.pid : place.pid;
  sockets_.add({std::move(theirs), index, holder, std::move(subject)});
  out_.image.descriptors[static_cast<size_t>(index)].object = static_cast<int>(sockets_added_++);
}

/// A descriptor found in a socket's queue: it leads to a description that is known, or to one that is nowhere else.
Result<int> DescriptorInventory::take_right(UniqueFd fd) {
  const int pid = ::getpid();
  if (!own_pidfd_) {
    CKPT_TRY_ASSIGN(own_pidfd_, proc::open_pidfd(pid));
  }
  CKPT_TRY_ASSIGN(std::string link, proc::read_link(pid, fmt::format("fd/{}", fd.get())));
  CKPT_TRY_ASSIGN(proc::FdInfo info, proc::read_fdinfo(pid, fd.get()));
  const size_t at = places_.size();
  places_.push_back({0, pid, own_pidfd_.get(), fd.get(), std::move(link), std::move(info), at, {}});
  rights_.push_back(std::move(fd));
  join_group(at);
  return find_or_describe(at);
}

Result<void> DescriptorInventory::take_sockets() {
  if (sockets_added_ == 0) return {};
  CKPT_TRY(sockets_.run());
  for (const Blocker& blocker : sockets_.blockers) {
    if (blocker.flag != "--ext-unix-sk" || !may_be_on_its_way()) out_.blockers.push_back(blocker);
  }
  out_.notes.insert(out_.notes.end(), sockets_.notes.begin(), sockets_.notes.end());
  for (size_t index : sockets_.established()) {
    UniqueFd fd(::fcntl(sockets_.fd(index), F_DUPFD_CLOEXEC, 0));
    if (!fd) return sys_error("socket", "cannot be duplicated");
    out_.connections.push_back(std::move(fd));
  }
  out_.image.sockets = std::move(sockets_.sockets);
  out_.socket_contents = std::move(sockets_.contents);
  return {};
}

}  // namespace ckpt::capture
