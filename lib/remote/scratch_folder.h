// A folder below TMPDIR for what stands for objects elsewhere, or is on its way there.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::remote {

/// Locked while its owner lives: those that killed ones have left go when the next is made. The destructor removes it
/// with all that is in it, but in a fork.
class ScratchFolder {
 public:
  static Result<ScratchFolder> make();
  /// The same on tmpfs, where there is one for everybody (/dev/shm).
  /// `before` is told its path before it is made: whoever is to remove it after a kill is there by then.
  using Before = std::function<Result<void>(const std::filesystem::path&)>;
  static Result<ScratchFolder> make_in_memory(const Before& before = {});
  /// Below TMPDIR, or in memory where TMPDIR has less room than so many bytes.
  static Result<ScratchFolder> make_with(uint64_t room);
  ScratchFolder() = default;  ///< none
  ScratchFolder(ScratchFolder&& other) noexcept { *this = std::move(other); }
  ScratchFolder& operator=(ScratchFolder&& other) noexcept;
  ~ScratchFolder();

  /// Canonical; empty: none.
  const std::filesystem::path& path() const { return path_; }

 private:
  static Result<ScratchFolder> make_below(const std::filesystem::path& temporary, const Before& before = {});
  UniqueFd lock_;
  std::filesystem::path path_;
  pid_t owner_ = ::getpid();
};

}  // namespace ckpt::remote
