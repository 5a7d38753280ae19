// Bytes as lower-case hex digits, two a byte: ids, digests, what is binary in JSON.
#pragma once

#include <string>
#include <string_view>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt {

void append_hex(std::string& out, ByteSpan bytes);
std::string bytes_to_hex(ByteSpan bytes);
/// False: `text` is not exactly the digits of as many bytes as `out` has; `out` is then anything.
bool bytes_of_hex(std::string_view text, MutableByteSpan out);
bool is_hex(std::string_view text, size_t digits);

inline constexpr size_t kIdDigits = 32;
/// For what nobody else may name alike: images, jobs, migrations, packs. `kIdDigits` of the kernel's random numbers.
Result<std::string> random_id();
inline bool is_id(std::string_view text) { return is_hex(text, kIdDigits); }

/// `bytes` of the kernel's random numbers.
Result<std::string> random_hex(size_t bytes);

}  // namespace ckpt
