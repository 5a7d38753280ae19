// What names a chunk: a hash of its content that nobody can find a second content for.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::repository {

struct Id {
  std::array<uint8_t, 32> bytes{};
  bool operator==(const Id&) const = default;
  auto operator<=>(const Id&) const = default;
  /// No content has it: it stands for "none".
  bool empty() const { return *this == Id{}; }
  /// As good as random, but for an id that a stranger made up.
  uint64_t bits() const {
    uint64_t out;
    std::memcpy(&out, bytes.data(), sizeof out);
    return out;
  }
};

std::string to_hex(const Id& id);

/// SHA-256, or HMAC-SHA-256 by who has a key. Thread-safe.
class IdBuilder {
 public:
  IdBuilder();
  /// With a key of its own for each `purpose`: who can have content of his choice stored learns nothing by which he
  /// could pass it for something else. An empty key is none: plain SHA-256 whatever the purpose.
  IdBuilder(ByteSpan key, std::string_view purpose);

  Id of(ByteSpan content) const;
  bool keyed() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace ckpt::repository
