// A bounded cursor over bytes that came from a file: every read is checked, nothing is trusted.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace ckpt {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads little-endian values front to back. Nothing means "past the end"; the cursor then stays where it was.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan data) : data_(data) {}

  size_t position() const { return pos_; }
  size_t remaining() const { return data_.size() - pos_; }
  bool seek(size_t pos) {
    if (pos > data_.size()) return false;
    pos_ = pos;
    return true;
  }

  std::optional<ByteSpan> take(uint64_t n) {
    if (n > remaining()) return std::nullopt;
    ByteSpan out = data_.subspan(pos_, n);
    pos_ += n;
    return out;
  }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  std::optional<T> read() {
    auto raw = take(sizeof(T));
    if (!raw) return std::nullopt;
    T out;
    std::memcpy(&out, raw->data(), sizeof(T));
    return out;
  }

  /// Up to (not including) the next `delimiter`; the delimiter is consumed.
  std::optional<std::string_view> line(char delimiter = '\n') {
    std::string_view rest = as_text(data_.subspan(pos_));
    size_t end = rest.find(delimiter);
    if (end == std::string_view::npos) return std::nullopt;
    pos_ += end + 1;
    return rest.substr(0, end);
  }

 private:
  ByteSpan data_;
  size_t pos_ = 0;
};

}  // namespace ckpt
