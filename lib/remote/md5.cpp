#include "lib/remote/md5.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>

namespace ckpt::remote {

namespace {

constexpr size_t kDigits = 32;

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

}  // namespace

std::optional<Md5> md5_of(ByteSpan bytes) {
  Md5 out;
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), out.data(), &size, EVP_md5(), nullptr) != 1 || size != out.size())
    return std::nullopt;
  return out;
}

std::string hex(const Md5& md5) {
  std::string out;
  for (const unsigned char byte : md5) out += fmt::format("{:02x}", byte);
  return out;
}

std::string base64(const Md5& md5) {
  unsigned char text[4 * ((sizeof(Md5) + 2) / 3) + 1];
  const int size = EVP_EncodeBlock(text, md5.data(), static_cast<int>(md5.size()));
  return {reinterpret_cast<char*>(text), static_cast<size_t>(size)};
}

std::string without_quotes(const std::string& etag) {
  std::string out = etag;
  std::erase(out, '"');
  return out;
}

bool looks_like_md5(const std::string& etag) {
  const std::string_view text = etag, digits = text.substr(0, kDigits), rest = text.substr(digits.size());
  if (digits.size() != kDigits || !is_hex(digits)) return false;
  return rest.empty() ||
         (rest.size() > 1 && rest[0] == '-' && rest.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

std::string etag_of_parts(std::span<const std::string> parts) {
  std::string all;
  for (const std::string& part : parts) {
    const std::string etag = without_quotes(part);
    if (etag.size() != kDigits || !is_hex(etag)) return "";
    for (size_t i = 0; i < kDigits; i += 2) {
      unsigned char byte = 0;
      std::from_chars(etag.data() + i, etag.data() + i + 2, byte, 16);
      all += static_cast<char>(byte);
    }
  }
  const auto md5 = md5_of(as_bytes(all));
  return md5 ? fmt::format("{}-{}", hex(*md5), parts.size()) : "";
}

}  // namespace ckpt::remote
