#include "lib/repository/id.h"

// The plain functions: see lib/base/digest.cpp.
#define OPENSSL_API_COMPAT 10101
#include <openssl/sha.h>

#include "lib/base/hex.h"

namespace ckpt::repository {

namespace {

constexpr size_t kBlock = 64;  ///< of SHA-256

Id finish(SHA256_CTX context) {
  Id out;
  CKPT_ASSERT(SHA256_Final(out.bytes.data(), &context) == 1);
  return out;
}

SHA256_CTX started() {
  SHA256_CTX out;
  CKPT_ASSERT(SHA256_Init(&out) == 1);
  return out;
}

void add(SHA256_CTX& context, const void* data, size_t size) { CKPT_ASSERT(SHA256_Update(&context, data, size) == 1); }

}  // namespace

struct IdBuilder::State {
  SHA256_CTX inner = started();
  std::optional<SHA256_CTX> outer;

  /// RFC 2104; the two blocks with the key are taken once.
  void set_key(ByteSpan key) {
    std::array<uint8_t, kBlock> block{};
    if (key.size() > kBlock) {
      SHA256_CTX context = started();
      add(context, key.data(), key.size());
      const Id id = finish(context);
      std::memcpy(block.data(), id.bytes.data(), id.bytes.size());
    } else if (!key.empty()) {
      std::memcpy(block.data(), key.data(), key.size());
    }
    for (uint8_t& b : block) b ^= 0x36;
    add(inner, block.data(), kBlock);
    for (uint8_t& b : block) b ^= 0x36 ^ 0x5c;
    outer = started();
    add(*outer, block.data(), kBlock);
  }

  Id of(ByteSpan content) const {
    SHA256_CTX context = inner;
    add(context, content.data(), content.size());
    const Id first = finish(context);
    if (!outer) return first;
    context = *outer;
    add(context, first.bytes.data(), first.bytes.size());
    return finish(context);
  }
};

IdBuilder::IdBuilder() : state_(std::make_shared<State>()) {}

IdBuilder::IdBuilder(ByteSpan key, std::string_view purpose) {
  auto state = std::make_shared<State>();
  if (!key.empty()) {
    State master;
    master.set_key(key);
    const Id derived = master.of(as_bytes(purpose));
    state->set_key(std::as_bytes(std::span(derived.bytes)));
  }
  state_ = std::move(state);
}

Id IdBuilder::of(ByteSpan content) const { return state_->of(content); }
bool IdBuilder::keyed() const { return state_->outer.has_value(); }

std::string to_hex(const Id& id) { return bytes_to_hex(std::as_bytes(std::span(id.bytes))); }

}  // namespace ckpt::repository
