#include "lib/remote/md5.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <vector>

#include "lib/base/hex.h"

namespace ckpt::remote {

namespace {

constexpr size_t kDigits = 2 * sizeof(Md5);

}  // namespace

std::optional<Md5> md5_of(ByteSpan bytes) {
  Md5 out;
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), out.data(), &size, EVP_md5(), nullptr) != 1 || size != out.size())
    return std::nullopt;
  return out;
}

std::string hex(const Md5& md5) { return bytes_to_hex(std::as_bytes(std::span(md5))); }

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
  if (!is_hex(digits, kDigits)) return false;
  return rest.empty() ||
         (rest.size() > 1 && rest[0] == '-' && rest.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

std::string etag_of_parts(std::span<const std::string> parts) {
  std::vector<std::byte> all;
  for (const std::string& part : parts) {
    Md5 one;
    if (!bytes_of_hex(without_quotes(part), std::as_writable_bytes(std::span(one)))) return "";
    const auto bytes = std::as_bytes(std::span(one));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  const auto md5 = md5_of(all);
  return md5 ? fmt::format("{}-{}", hex(*md5), parts.size()) : "";
}

}  // namespace ckpt::remote
