#include "lib/state/pipes/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lib/base/io.h"
#include "lib/base/pipe.h"

namespace ckpt::restore {

using store::Descriptor;

const store::Pipe& PipeBuilder::pipe_of(const Descriptor& descriptor) const {
  return image_.manifest().tree.pipes[static_cast<size_t>(descriptor.pipe)];
}

Result<void> PipeBuilder::fill(int fd, const store::Pipe& pipe) const {
  if (::fcntl(fd, F_SETPIPE_SZ, static_cast<int>(pipe.capacity)) < 0)
    return sys_error("", fmt::format("cannot make a pipe of {} bytes", pipe.capacity));
  if (pipe.content_size == 0) return {};
  CKPT_TRY_ASSIGN(std::vector<std::byte> content, image_.read_pipe(pipe.content_offset, pipe.content_size));
  return io::write_all(fd, content, "pipe");
}

Result<PipeBuilder::OpenPipe> PipeBuilder::make(const store::Pipe& pipe) const {
  CKPT_TRY_ASSIGN(PipeEnds ends, make_pipe({}, O_NONBLOCK));
  CKPT_TRY(fill(ends.write.get(), pipe));
  OpenPipe out{std::move(ends.read), std::move(ends.write), {}};
  out.any.reset(::fcntl(out.read.get(), F_DUPFD_CLOEXEC, 0));
  if (!out.any) return sys_error("", "cannot make a pipe");
  return out;
}

Result<UniqueFd> PipeBuilder::open_end(const Descriptor& descriptor) {
  auto pipe = pipes_.find(descriptor.pipe);
  if (pipe == pipes_.end()) {
    CKPT_TRY_ASSIGN(OpenPipe made, make(pipe_of(descriptor)));
    pipe = pipes_.emplace(descriptor.pipe, std::move(made)).first;
  }
  constexpr int kLargeFile = 0100000;  // the kernel's: of every file that was opened, of no end that pipe(2) made
  const int mode = descriptor.flags & O_ACCMODE;
  UniqueFd& end = mode == O_RDONLY ? pipe->second.read : pipe->second.write;
  if ((descriptor.flags & kLargeFile) == 0 && mode != O_RDWR && end) return std::move(end);
  return io::open_file(fmt::format("/proc/self/fd/{}", pipe->second.any.get()), mode | O_NONBLOCK);
}

Result<UniqueFd> PipeBuilder::open_fifo(const Descriptor& descriptor, int both) {
  if (filled_.insert(descriptor.pipe).second) CKPT_TRY(fill(both, pipe_of(descriptor)));
  return io::open_file(fmt::format("/proc/self/fd/{}", both), (descriptor.flags & (O_ACCMODE | O_PATH)) | O_NONBLOCK);
}

}  // namespace ckpt::restore
