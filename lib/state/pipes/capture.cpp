#include "lib/state/pipes/capture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

#include "lib/base/pipe.h"
#include "lib/state/external/capture.h"
#include "lib/state/files/capture.h"

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
std::map<std::string, int> held_outside(Walk& walk, const std::set<std::string>& links) {
  std::map<std::string, int> out;
  for (const OtherProcess& other : other_processes(walk)) {
    for (const proc::OpenFd& open : other.fds) {
      if (links.count(open.link) != 0) out.emplace(open.link, other.pid);
    }
  }
  return out;
}

std::string held_by(const std::map<std::string, int>& holders, const std::string& link) {
  auto holder = holders.find(link);
  return holder == holders.end() ? "" : ", held by " + proc::describe_pid(holder->second);
}

/// The reader of a pipe without writers is hung up on, the writer of one without readers sees an error.
bool other_end_closed(const Place& place) {
  auto theirs = DescriptorContext::duplicate(place);
  if (!theirs) return false;
  pollfd poll{theirs->get(), 0, 0};
  return ::poll(&poll, 1, 0) == 1 && (poll.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace

/// A pipe is the tree's own when nobody else has it open, be its other end here, in flight, or nowhere any more. Any
/// other one is an external resource.
Result<void> PipeCollector::settle(bool may_be_in_flight) {
  std::map<int, int> modes;
  for (const Descriptor& d : context_.out.image.descriptors) {
    if (d.kind != DescriptorKind::kPipe) continue;
    const int mode = d.flags & O_ACCMODE;
    modes[d.pipe] |= mode == O_RDONLY ? 1 : mode == O_WRONLY ? 2 : 3;
  }
  std::set<std::string> whole, outside;
  for (const auto& [pipe, place] : places_) {
    if (modes[pipe] == 3 || other_end_closed(place)) whole.insert(place.link);
    else if (!may_be_in_flight) outside.insert(place.link);
  }
  // Looking through every process takes milliseconds: not while the target stands still.
  std::map<std::string, int> holders;
  if (context_.walk.options.earlier != nullptr) {
    context_.out.outside_pipes = context_.walk.options.earlier->outside_pipes;
  } else if (!whole.empty() ||
             (!outside.empty() && context_.walk.options.external.pipes == state::ExternalPipes::kFail)) {
    whole.insert(outside.begin(), outside.end());
    holders = held_outside(context_.walk, whole);
    for (const auto& [link, pid] : holders) context_.out.outside_pipes.insert(link);
  }
  outside.insert(context_.out.outside_pipes.begin(), context_.out.outside_pipes.end());
  for (Descriptor& d : context_.out.image.descriptors) {
    if (d.kind != DescriptorKind::kPipe) continue;
    const Place& place = places_.at(d.pipe);
    if (outside.count(place.link) == 0) continue;
    external::take_pipe(
        context_, place, place.link,
        fmt::format("a pipe ({}) whose other end is outside{}", place.link, held_by(holders, place.link)), d);
    context_.out.image.pipes[static_cast<size_t>(d.pipe)] = {};
    context_.out.pipe_contents[static_cast<size_t>(d.pipe)].clear();
    d.pipe = -1;
  }
  return {};
}

Result<bool> PipeCollector::take_pipe(const Place& place, Descriptor& d) {
  d.kind = DescriptorKind::kPipe;
  CKPT_TRY_ASSIGN(bool joined, join(place, {0, pipe_inode(place.link)}, d));
  places_.emplace(d.pipe, place);
  return joined;
}

Result<bool> PipeCollector::take_fifo(const Place& place, const struct stat& st, Descriptor& d) {
  CKPT_TRY_ASSIGN(bool ok, take_file(context_, place, st, d));
  if (!ok) return false;
  d.kind = DescriptorKind::kFifo;
  d.written_by_process = false;
  return join(place, {st.st_dev, st.st_ino}, d);
}

Result<bool> PipeCollector::join(const Place& place, std::pair<uint64_t, uint64_t> inode, Descriptor& d) {
  if ((d.flags & O_DIRECT) != 0)
    return context_.block(place, "a pipe in packet mode (O_DIRECT), which is not supported"), false;
  auto [known, is_new] = pipes_.emplace(inode, State{static_cast<int>(context_.out.image.pipes.size()), false});
  if (is_new) {
    context_.out.image.pipes.emplace_back();
    context_.out.pipe_contents.emplace_back();
  }
  d.pipe = known->second.index;
  if ((d.flags & O_ACCMODE) == O_WRONLY || (d.flags & O_PATH) != 0 || !context_.frozen() ||
      std::exchange(known->second.read, true))
    return true;
  CKPT_TRY(read(place, static_cast<size_t>(d.pipe)));
  return true;
}

/// Copies what is in the pipe without taking it out: tee, from a duplicate of the read end.
Result<void> PipeCollector::read(const Place& place, size_t index) {
  store::Pipe& pipe = context_.out.image.pipes[index];
  CKPT_TRY_ASSIGN(UniqueFd theirs, DescriptorContext::duplicate(place));
  int capacity = ::fcntl(theirs.get(), F_GETPIPE_SZ), size = 0;
  if (capacity > 0) pipe.capacity = static_cast<uint64_t>(capacity);
  if (::ioctl(theirs.get(), FIONREAD, &size) != 0) return sys_error("pipe", "cannot read its fill level");
  pipe.content_size = static_cast<uint64_t>(size);
  if (size == 0) return {};
  CKPT_TRY_ASSIGN(const auto ends, make_pipe("pipe", O_NONBLOCK));
  const auto& [ours, into] = ends;
  (void)::fcntl(into.get(), F_SETPIPE_SZ, capacity);
  ssize_t copied = ::tee(theirs.get(), into.get(), static_cast<size_t>(size), SPLICE_F_NONBLOCK);
  if (copied != size)
    return copied < 0 ? sys_error("pipe", "cannot copy its content")
                      : Error(Code::kIo, "pipe", "cannot copy all of its content");
  auto& content = context_.out.pipe_contents[index];
  content.resize(static_cast<size_t>(size));
  for (size_t at = 0; at < content.size();) {
    ssize_t n = ::read(ours.get(), content.data() + at, content.size() - at);
    if (n <= 0) return sys_error("pipe", "cannot read its content");
    at += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace ckpt::capture
