// The fixed parts of a zip archive's records: APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.9 (data
// descriptor), 4.3.12 (directory), 4.3.14 to 4.3.16 (ends).
#pragma once

#include <cstdint>
#include <cstring>

#include "lib/base/bytes.h"

namespace ckpt::zip {

inline constexpr uint32_t kLocalSignature = 0x04034b50, kDescriptorSignature = 0x08074b50,
                          kCentralSignature = 0x02014b50;
inline constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;

/// Bytes, without names, extra fields and comments.
inline constexpr uint64_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocator64Size = 20;

/// The number at `offset`: little-endian, unaligned.
template <class T>
T at(ByteSpan data, size_t offset) {
  T out;
  std::memcpy(&out, data.data() + offset, sizeof out);
  return out;
}

}  // namespace ckpt::zip
