// A file that holds what is on its way somewhere else, and for which there is no room in memory.
#pragma once

#include <cstdint>
#include <mutex>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::remote {

/// A file without a name below TMPDIR, which nobody else gets at: it may hold the memory of processes.
Result<UniqueFd> make_unnamed_file();

/// A file without a name below TMPDIR, made when it is first needed: it goes with this process, however that ends. Each
/// piece is put once and taken once; the room of what has been taken is given back. Thread-safe.
class Spool {
 public:
  /// Left to the others who use the file system: a sixteenth of it, of a large one this many bytes.
  static constexpr uint64_t kLeftToOthers = 256 << 20;

  /// Where it lies. kNoRoom: not all of it has room, and what there was is given back.
  Result<uint64_t> put(ByteSpan bytes);
  Result<void> take(uint64_t at, MutableByteSpan out);

 private:
  std::mutex mutex_;  ///< of all that follows
  Result<void> check_room(uint64_t bytes);
  void release(uint64_t at, uint64_t bytes);
  UniqueFd file_;
  uint64_t size_ = 0;
};

}  // namespace ckpt::remote
