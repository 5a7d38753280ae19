#include "formats/zarr/shard_index.h"

#include <algorithm>
#include <cstring>

#include "lib/base/checked.h"

namespace ckpt::formats {

namespace {

constexpr uint64_t kEntry = 16;

Result<void> check_entries(const std::vector<ShardEntry>& entries, uint64_t index_begin, uint64_t index_end,
                           uint64_t shard_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges = {{index_begin, index_end}};
  for (const ShardEntry& entry : entries) {
    if (entry.absent) continue;
    if (entry.offset > shard_bytes || entry.length > shard_bytes - entry.offset) {
      return fail(Code::kCorrupt, "", "the shard's index names bytes past its end");
    }
    if (entry.length > 0) ranges.emplace_back(entry.offset, entry.offset + entry.length);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return fail(Code::kCorrupt, "",
                  "what the shard's index names overlaps at byte " + std::to_string(ranges[i].first));
    }
  }
  return {};
}

}  // namespace

std::optional<uint64_t> shard_index_bytes(const ZarrSharding& level, uint64_t chunks) {
  auto bytes = checked_mul<uint64_t>(chunks, kEntry);
  if (!bytes || *bytes > UINT64_MAX / 2) return std::nullopt;
  for (size_t i = level.index_codecs.size(); i-- > 0 && bytes;) bytes = stored_bytes(level.index_codecs[i], *bytes);
  return bytes;
}

Result<std::vector<ShardEntry>> parse_shard_index(const ZarrSharding& level, ByteSpan stored, uint64_t chunks,
                                                  uint64_t shard_bytes) {
  if (stored.size() != shard_index_bytes(level, chunks) || stored.size() > shard_bytes) {
    return fail(Code::kCorrupt, "", "the shard is too short for its index");
  }
  std::vector<std::byte> plain(chunks * kEntry);
  auto decoded = decode_steps(level.index_codecs, stored, plain);
  if (!decoded) {
    decoded.error().message = "the shard's index: " + decoded.error().message;
    return std::move(decoded).error();
  }
  std::vector<ShardEntry> out(chunks);
  for (uint64_t i = 0; i < chunks; ++i) {
    std::memcpy(&out[i].offset, plain.data() + i * kEntry, sizeof(uint64_t));
    std::memcpy(&out[i].length, plain.data() + i * kEntry + sizeof(uint64_t), sizeof(uint64_t));
    out[i].absent = out[i].offset == UINT64_MAX && out[i].length == UINT64_MAX;
  }
  const uint64_t begin = level.index_at_start ? 0 : shard_bytes - stored.size();
  CKPT_TRY(check_entries(out, begin, begin + stored.size(), shard_bytes));
  return out;
}

}  // namespace ckpt::formats
