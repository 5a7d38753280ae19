#include "plugins/cuda/uuid.h"

#include <fmt/format.h>

#include <charconv>

namespace ckpt::cuda {

std::string uuid_text(const api::CUuuid& uuid) {
  std::string out = "GPU-";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return out;
}

Result<api::CUuuid> parse_uuid(std::string_view text) {
  std::string digits;
  std::string_view rest = text.substr(0, 4) == "GPU-" ? text.substr(4) : text;
  for (char c : rest) {
    if (c != '-') digits += c;
  }
  api::CUuuid out{};
  if (digits.size() != 2 * sizeof out.bytes) return fail(Code::kUsage, std::string(text), "is not the UUID of a GPU");
  for (size_t i = 0; i < sizeof out.bytes; ++i) {
    unsigned value = 0;
    const char* at = digits.data() + 2 * i;
    if (auto [end, error] = std::from_chars(at, at + 2, value, 16); error != std::errc() || end != at + 2)
      return fail(Code::kUsage, std::string(text), "is not the UUID of a GPU");
    out.bytes[i] = static_cast<char>(value);
  }
  return out;
}

}  // namespace ckpt::cuda
