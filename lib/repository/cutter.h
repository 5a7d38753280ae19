// Where files are cut into chunks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/repository/id.h"

namespace ckpt::repository {

/// Bytes of a file that are one chunk whatever is around them.
struct Fixed {
  uint64_t offset = 0;
  uint32_t length = 0;
};

/// Cuts where the content says so, so that what moved within a file, or to another one, is found again: a boundary
/// is where a rolling hash (gear) of the 64 bytes before it has kBits zero bits. 256 KiB to 4 MiB, about 1.2 MiB.
class ContentCuts {
 public:
  static constexpr size_t kLeast = 256 << 10, kMost = 4 << 20;
  static constexpr unsigned kBits = 20;
  /// The table of the hash is made of ids: who does not have the store's key cannot tell content by chunks' lengths.
  explicit ContentCuts(const IdBuilder& ids);
  /// How long the first chunk of `data` is; 0: more is needed, and there will be more.
  size_t next(ByteSpan data, bool last) const;

 private:
  std::array<uint64_t, 256> gear_;
};

/// A part of a file fed front to back, pieces of it handed out in that order.
class Cutter {
 public:
  using Each = std::function<Result<void>(ByteSpan piece)>;
  /// By content. What it refers to outlives it.
  explicit Cutter(const ContentCuts& cuts) : cuts_(&cuts) {}
  /// At multiples of 4096 bytes of the file, but where `fixed` (sorted, without overlaps) says otherwise. `offset`:
  /// where the part begins, which is no place inside of a fixed one.
  Cutter(std::span<const Fixed> fixed, uint64_t offset) : fixed_(fixed), offset_(offset) {}

  Result<void> feed(ByteSpan data, const Each& each);
  Result<void> finish(const Each& each);

 private:
  size_t next(ByteSpan data, bool last);
  Result<void> cut(bool last, const Each& each);

  const ContentCuts* cuts_ = nullptr;
  std::span<const Fixed> fixed_;
  uint64_t offset_ = 0;
  std::vector<std::byte> rest_;
  size_t begin_ = 0;  ///< in it: what is before was handed out
};

bool is_zero(ByteSpan data);

}  // namespace ckpt::repository
