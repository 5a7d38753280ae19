// Arithmetic of GF(2^8) with the polynomial 0x11D, the one of ISA-L: on bytes, on matrices, on blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/bytes.h"

namespace ckpt::parity {

uint8_t gf_multiply(uint8_t a, uint8_t b);
/// Of anything but 0.
uint8_t gf_inverse(uint8_t a);

/// Square, row by row.
using Matrix = std::vector<std::vector<uint8_t>>;
/// Nothing: it is singular.
std::optional<Matrix> gf_invert(Matrix matrix);

// Blocks of equal length, a multiple of kBlockUnit. By ISA-L where it can be loaded (Debian: libisal2), else by loops
// that the compiler vectorises: the bytes are the same.
constexpr size_t kBlockUnit = 64;
/// into = factor * from
void gf_scale(MutableByteSpan into, ByteSpan from, uint8_t factor);
/// into ^= factor * from
void gf_add(MutableByteSpan into, ByteSpan from, uint8_t factor);
/// Whether ISA-L is what does it.
bool gf_has_isal();
/// The loops, whatever is loaded: for tests.
void gf_add_plain(MutableByteSpan into, ByteSpan from, uint8_t factor);

}  // namespace ckpt::parity
