#include "lib/base/digest.h"

// The plain functions, which OpenSSL 3 calls deprecated: those of EVP load providers and bring most of libcrypto along,
// whose tables take every start of ckpt half a millisecond.
#define OPENSSL_API_COMPAT 10101
#include <openssl/sha.h>
#include <xxhash.h>

#include <cstdio>

#include "lib/base/hex.h"
#include "lib/base/result.h"
#include "lib/base/xxh3_wide.h"

namespace ckpt {

namespace {

const bool kWide = __builtin_cpu_supports("avx512f") != 0;

}  // namespace

Hash128 xxh3_128(ByteSpan data) {
  if (kWide) {
    Hash128 out;
    xxh3_128_wide(data.data(), data.size(), out.lo, out.hi);
    return out;
  }
  XXH128_hash_t h = XXH3_128bits(data.data(), data.size());
  return {h.low64, h.high64};
}

std::string to_hex(const Hash128& hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.hi),
                static_cast<unsigned long long>(hash.lo));
  return text;
}

struct Xxh3::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { CKPT_ASSERT(xxh != nullptr && XXH3_128bits_reset(xxh) == XXH_OK); }
  ~State() { XXH3_freeState(xxh); }
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

void Xxh3::update(ByteSpan data) {
  if (kWide) return xxh3_update_wide(state_->xxh, data.data(), data.size());
  CKPT_ASSERT(XXH3_128bits_update(state_->xxh, data.data(), data.size()) == XXH_OK);
}

Hash128 Xxh3::digest() const {
  XXH128_hash_t h = XXH3_128bits_digest(state_->xxh);
  return {h.low64, h.high64};
}

struct Sha256::State {
  SHA256_CTX ctx;
  State() { start(); }
  void start() { CKPT_ASSERT(SHA256_Init(&ctx) == 1); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(ByteSpan data) {
  CKPT_ASSERT(SHA256_Update(&state_->ctx, data.data(), data.size()) == 1);
}

std::string Sha256::finish_hex() {
  unsigned char raw[SHA256_DIGEST_LENGTH];
  CKPT_ASSERT(SHA256_Final(raw, &state_->ctx) == 1);
  state_->start();
  return bytes_to_hex(std::as_bytes(std::span(raw)));
}

std::string sha256_hex(ByteSpan data) {
  Sha256 sha;
  sha.update(data);
  return sha.finish_hex();
}

}  // namespace ckpt
