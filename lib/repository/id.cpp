#include "lib/repository/id.h"

// The plain functions: see lib/base/digest.cpp.
#define OPENSSL_API_COMPAT 10101
#include <openssl/sha.h>
#include <sys/random.h>

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

std::string bytes_to_hex(ByteSpan bytes) {
  static const char* kHex = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    out += kHex[static_cast<unsigned>(b) >> 4];
    out += kHex[static_cast<unsigned>(b) & 15];
  }
  return out;
}

std::string to_hex(const Id& id) { return bytes_to_hex(std::as_bytes(std::span(id.bytes))); }

std::optional<std::vector<std::byte>> bytes_of_hex(std::string_view text) {
  auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<std::byte> out(text.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    out[i] = static_cast<std::byte>(high * 16 + low);
  }
  return out;
}

Result<std::string> random_hex(size_t bytes) {
  std::vector<std::byte> raw(bytes);
  if (::getrandom(raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size()))
    return sys_error("", "cannot get random bytes");
  return bytes_to_hex(raw);
}

}  // namespace ckpt::repository
