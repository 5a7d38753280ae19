// ckpt's own kernels (plugins/cuda/kernels.h) for the stand-in, from the definition of the hash, word by word: a module
// that names them is ckpt_kernels.emu.
#include <string.h>

#include "lib/device/hash.h"
#include "plugins/cuda/kernels.h"
#include "tests/device/driver/standin.h"

namespace {

using namespace ckpt::device;

template <class T>
T value(const StandinLaunch* launch, int index) {
  T out;
  memcpy(&out, launch->params[index], sizeof out);
  return out;
}

/// As the device kernels do it: what is hashed is what was copied. `to` null: hash alone.
ChunkHash take(uint64_t* to, const uint64_t* from, uint64_t bytes) {
  uint64_t a[kHashLanes], b[kHashLanes], row[kHashRowWords];
  for (uint32_t i = 0; i < kHashLanes; ++i) hash_seed(i, a[i], b[i]);
  for (uint64_t at = 0; at < bytes / 8; at += kHashRowWords) {
    memcpy(row, from + at, sizeof row);
    asm volatile("" ::: "memory");  // read once, whoever writes it meanwhile
    if (to != nullptr) memcpy(to + at, row, sizeof row);
    for (uint32_t i = 0; i < kHashLanes; ++i) hash_step(a[i], b[i], row[i], row[i + kHashLanes]);
  }
  for (uint32_t s = kHashLanes / 2; s != 0; s /= 2)
    for (uint32_t i = 0; i < s; ++i) hash_step(a[i], b[i], a[i + s], b[i + s]);
  return hash_finish(a[0], b[0], bytes);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void emu_ckpt_hash_chunks(const StandinLaunch* launch) {
  auto* from = static_cast<const uint64_t*>(launch->translate(value<uint64_t>(launch, 0)));
  const auto chunk = value<uint64_t>(launch, 1), chunks = value<uint64_t>(launch, 2);
  auto* out = static_cast<ChunkHash*>(launch->translate(value<uint64_t>(launch, 3)));
  for (uint64_t i = 0; i < chunks; ++i) out[i] = take(nullptr, from + i * (chunk / 8), chunk);
}

extern "C" __attribute__((visibility("default"))) void emu_ckpt_copy_and_hash(const StandinLaunch* launch) {
  auto* from = static_cast<const ckpt::cuda::ChunkAddresses*>(launch->params[0]);
  const auto chunk = value<uint64_t>(launch, 1), chunks = value<uint64_t>(launch, 2);
  auto* to = static_cast<uint64_t*>(launch->translate(value<uint64_t>(launch, 3)));
  auto* out = static_cast<ChunkHash*>(launch->translate(value<uint64_t>(launch, 4)));
  for (uint64_t i = 0; i < chunks; ++i)
    out[i] = take(to + i * (chunk / 8), static_cast<const uint64_t*>(launch->translate(from->at[i])), chunk);
}
