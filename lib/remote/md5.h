// MD5, by which S3 checks what it is sent and names what it has.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "lib/base/bytes.h"

namespace ckpt::remote {

using Md5 = std::array<unsigned char, 16>;

/// Nothing: the host's policy knows no MD5.
std::optional<Md5> md5_of(ByteSpan bytes);

std::string hex(const Md5& md5);
std::string base64(const Md5& md5);

/// An ETag as it is compared: without the quotes that some answers have and others lack.
std::string without_quotes(const std::string& etag);
/// 32 hex digits, or those with "-N" of an object of N parts.
bool looks_like_md5(const std::string& etag);
/// The ETag of an object made of such parts, without quotes; empty: the parts' ETags are none of MD5.
std::string etag_of_parts(std::span<const std::string> parts);

}  // namespace ckpt::remote
