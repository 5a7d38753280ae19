// Pipes and fifos, and what is in them.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>

#include "lib/capture/inventory_descriptors.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

namespace {

uint64_t pipe_inode(std::string_view link) {
  uint64_t inode = 0;
  link.remove_prefix(std::string_view("pipe:[").size());
  std::from_chars(link.data(), link.data() + link.size(), inode);
  return inode;
}

/// Those of `links` that a process outside the tree has open, and which one.
std::map<std::string, int> held_outside(const std::vector<Member>& members, const std::set<std::string>& links) {
  std::map<std::string, int> out;
  std::set<int> tree = {::getpid()};
  for (const Member& member : members) tree.insert(member.entry.pid);
  for (const auto& entry : std::filesystem::directory_iterator("/proc", std::filesystem::directory_options::skip_permission_denied)) {
    int other = 0;
    std::string name = entry.path().filename().string();
    auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), other);
    if (ec != std::errc() || end != name.data() + name.size() || tree.count(other) != 0) continue;
    auto fds = proc::read_fds(other);
    if (!fds) continue;
    for (const proc::OpenFd& open : *fds) {
      if (links.count(open.link) != 0) out.emplace(open.link, other);
    }
  }
  return out;
}

std::string held_by(const std::map<std::string, int>& holders, const std::string& link) {
  auto holder = holders.find(link);
  return holder == holders.end() ? "" : ", held by " + proc::describe_pid(holder->second);
}

}  // namespace

/// A pipe is the tree's own when nobody else has it open, be its other end here, on its way, or nowhere any more. Any other
/// one is of the surroundings.
Result<void> DescriptorInventory::settle_pipes() {
  std::map<int, int> modes;
  for (const Descriptor& d : out_.image.descriptors) {
    if (d.kind != DescriptorKind::kPipe) continue;
    const int mode = d.flags & O_ACCMODE;
    modes[d.pipe] |= mode == O_RDONLY ? 1 : mode == O_WRONLY ? 2 : 3;
  }
  std::set<std::string> whole, outside;
  for (const auto& [pipe, place] : pipe_places_) {
    if (modes[pipe] == 3 || other_end_closed(place)) whole.insert(place.link);
    else if (!may_be_on_its_way()) outside.insert(place.link);
  }
  // Looking through every process takes milliseconds: not while the target stands still.
  std::map<std::string, int> holders;
  if (walk_.options.earlier != nullptr) {
    out_.outside_pipes = walk_.options.earlier->outside_pipes;
  } else if (!whole.empty() || (!outside.empty() && !walk_.options.shell_job)) {
    whole.insert(outside.begin(), outside.end());
    holders = held_outside(walk_.members, whole);
    for (const auto& [link, pid] : holders) out_.outside_pipes.insert(link);
  }
  outside.insert(out_.outside_pipes.begin(), out_.outside_pipes.end());
  for (Descriptor& d : out_.image.descriptors) {
    if (d.kind != DescriptorKind::kPipe) continue;
    const Place& place = pipe_places_.at(d.pipe);
    if (outside.count(place.link) == 0) continue;
    CKPT_TRY(take_external(place, place.link, fmt::format("a pipe ({}) whose other end is outside{}", place.link, held_by(holders, place.link)), d));
    out_.image.pipes[static_cast<size_t>(d.pipe)] = {};
    out_.pipe_contents[static_cast<size_t>(d.pipe)].clear();
    d.pipe = -1;
  }
  return {};
}

/// The reader of a pipe without writers is hung up on, the writer of one without readers sees an error.
bool DescriptorInventory::other_end_closed(const Place& place) const {
  auto theirs = proc::get_remote_fd(place.pidfd, place.fd);
  if (!theirs) return false;
  pollfd poll{theirs->get(), 0, 0};
  return ::poll(&poll, 1, 0) == 1 && (poll.revents & (POLLHUP | POLLERR)) != 0;
}

Result<bool> DescriptorInventory::take_pipe(const Place& place, Descriptor& d) {
  d.kind = DescriptorKind::kPipe;
  CKPT_TRY_ASSIGN(bool joined, join_pipe(place, {0, pipe_inode(place.link)}, d));
  pipe_places_.emplace(d.pipe, place);
  return joined;
}

Result<bool> DescriptorInventory::take_fifo(const Place& place, const struct stat& st, Descriptor& d) {
  CKPT_TRY_ASSIGN(bool ok, take_file(place, st, d));
  if (!ok) return false;
  d.kind = DescriptorKind::kFifo;
  d.written_by_process = false;
  return join_pipe(place, {st.st_dev, st.st_ino}, d);
}

Result<bool> DescriptorInventory::join_pipe(const Place& place, std::pair<uint64_t, uint64_t> inode, Descriptor& d) {
  if ((d.flags & O_DIRECT) != 0) return block(place, "a pipe in packet mode (O_DIRECT), which is not supported"), false;
  auto [known, is_new] = pipes_.emplace(inode, PipeState{static_cast<int>(out_.image.pipes.size()), false});
  if (is_new) {
    out_.image.pipes.emplace_back();
    out_.pipe_contents.emplace_back();
  }
  d.pipe = known->second.index;
  if ((d.flags & O_ACCMODE) == O_WRONLY || (d.flags & O_PATH) != 0 || !walk_.options.frozen || std::exchange(known->second.read, true)) return true;
  CKPT_TRY(read_pipe(place, static_cast<size_t>(d.pipe)));
  return true;
}

/// Copies what is in the pipe without taking it out: tee, from a duplicate of the read end.
Result<void> DescriptorInventory::read_pipe(const Place& place, size_t index) {
  store::Pipe& pipe = out_.image.pipes[index];
  CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
  int capacity = ::fcntl(theirs.get(), F_GETPIPE_SZ), size = 0;
  if (capacity > 0) pipe.capacity = static_cast<uint64_t>(capacity);
  if (::ioctl(theirs.get(), FIONREAD, &size) != 0) return sys_error("pipe", "cannot read its fill level");
  pipe.content_size = static_cast<uint64_t>(size);
  if (size == 0) return {};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return sys_error("pipe", "cannot make a pipe");
  UniqueFd ours(ends[0]), into(ends[1]);
  (void)::fcntl(into.get(), F_SETPIPE_SZ, capacity);
  ssize_t copied = ::tee(theirs.get(), into.get(), static_cast<size_t>(size), SPLICE_F_NONBLOCK);
  if (copied != size) return copied < 0 ? sys_error("pipe", "cannot copy its content") : Error(Code::kIo, "pipe", "cannot copy all of its content");
  auto& content = out_.pipe_contents[index];
  content.resize(static_cast<size_t>(size));
  for (size_t at = 0; at < content.size();) {
    ssize_t n = ::read(ours.get(), content.data() + at, content.size() - at);
    if (n <= 0) return sys_error("pipe", "cannot read its content");
    at += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace ckpt::capture
