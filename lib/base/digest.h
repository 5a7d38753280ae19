// Digests. XXH3-128 guards chunks against accidents and finds repeats; SHA-256 is for what other tools compare.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/base/bytes.h"

namespace ckpt {

struct Hash128 {
  uint64_t lo = 0, hi = 0;
  bool operator==(const Hash128&) const = default;
};
Hash128 xxh3_128(ByteSpan data);
/// 32 hex digits, high half first: the canonical form that `xxh128sum` prints.
std::string to_hex(const Hash128& hash);

/// XXH3-128 of data that comes in pieces.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;
  void update(ByteSpan data);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(ByteSpan data);
  /// 64 lower-case hex digits; the object starts over afterwards.
  std::string finish_hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};
std::string sha256_hex(ByteSpan data);

/// CRC-32 as zip uses it (polynomial 0xEDB88320), going on from `crc` (0 at the start).
uint32_t crc32(uint32_t crc, ByteSpan data);
/// The CRC of a concatenation, from the CRCs of its two parts and the length of the second.
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_length);


/// CRC-32C (Castagnoli, polynomial 0x82F63B78), going on from `crc` (0 at the start).
uint32_t crc32c(uint32_t crc, ByteSpan data);

}  // namespace ckpt
