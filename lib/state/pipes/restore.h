// Pipes and named pipes made again in ckpt, with their content.
#pragma once

#include <map>
#include <set>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/store/image.h"

namespace ckpt::restore {

class PipeBuilder {
 public:
  explicit PipeBuilder(const store::ImageReader& image) : image_(image) {}
  /// One end. The first call for a pipe makes it.
  Result<UniqueFd> open_end(const store::Descriptor& descriptor);
  /// `both`: the number of both ends of the named pipe, held open until the processes have theirs: the content would go
  /// with the last of them.
  Result<UniqueFd> open_fifo(const store::Descriptor& descriptor, int both);

 private:
  /// A pipe while its ends are handed out. Those that pipe(2) made are told by their flags from others of the same
  /// pipe, which /proc/self/fd opens.
  struct OpenPipe {
    UniqueFd read, write;
    UniqueFd any;  ///< stays
  };
  Result<void> fill(int fd, const store::Pipe& pipe) const;
  Result<OpenPipe> make(const store::Pipe& pipe) const;
  const store::Pipe& pipe_of(const store::Descriptor& descriptor) const;

  const store::ImageReader& image_;
  std::map<int, OpenPipe> pipes_;  ///< by index into TreeImage::pipes
  std::set<int> filled_;           ///< named pipes that have their content
};

}  // namespace ckpt::restore
