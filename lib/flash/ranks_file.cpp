#include <algorithm>
#include <cstring>

#include "lib/flash/persist.h"

namespace ckpt::flash {

namespace {

constexpr char kRanksMagic[8] = {'C', 'K', 'F', 'L', 'R', 'N', 'K', '1'};
constexpr char kRanksWithOwnMagic[8] = {'C', 'K', 'F', 'L', 'R', 'N', 'K', '2'};  ///< RankRecord::own behind hashes
constexpr uint64_t kMostRankBytes = uint64_t{1} << 32;

void put(std::string& out, const void* data, size_t size) { out.append(static_cast<const char*>(data), size); }
void put_number(std::string& out, uint64_t number) { put(out, &number, sizeof number); }
void put_text(std::string& out, const std::string& text) {
  put_number(out, text.size());
  out += text;
}

bool get_text(ByteReader& in, std::string& out) {
  const auto size = in.read<uint64_t>();
  const auto bytes = size && *size <= kMostRankBytes ? in.take(*size) : std::nullopt;
  if (bytes) out = as_text(*bytes);
  return bytes.has_value();
}

bool get_own(ByteReader& in, RankRecord& rank) {
  const auto count = in.read<uint64_t>();
  if (!count || *count > rank.hashes.size()) return false;
  for (uint64_t i = 0; i < *count; ++i) {
    const auto tensor = in.read<uint64_t>();
    if (!tensor || *tensor >= rank.hashes.size() || !get_text(in, rank.own[static_cast<uint32_t>(*tensor)]))
      return false;
  }
  return true;
}

}  // namespace

std::string encode_ranks(const RanksRecord& record) {
  const bool has_own =
      std::any_of(record.ranks.begin(), record.ranks.end(), [](const RankRecord& rank) { return !rank.own.empty(); });
  std::string out(has_own ? kRanksWithOwnMagic : kRanksMagic, sizeof kRanksMagic);
  put_number(out, record.step);
  put_number(out, record.world);
  put_number(out, record.ranks.size());
  for (const RankRecord& rank : record.ranks) {
    put_number(out, rank.rank);
    put_text(out, rank.layout);
    put_text(out, rank.objects);
    put_number(out, rank.hashes.size());
    for (const Hash128& hash : rank.hashes) put(out, &hash, sizeof hash);
    if (!has_own) continue;
    put_number(out, rank.own.size());
    for (const auto& [tensor, bytes] : rank.own) {
      put_number(out, tensor);
      put_text(out, bytes);
    }
  }
  const Hash128 hash = xxh3_128(as_bytes(out));
  put(out, &hash, sizeof hash);
  return out;
}

Result<RanksRecord> decode_ranks(ByteSpan bytes) {
  const auto damaged = [] { return fail(Code::kCorrupt, kRanksFile, "is not what was written"); };
  if (bytes.size() < sizeof kRanksMagic + sizeof(Hash128)) return damaged();
  const ByteSpan body = bytes.first(bytes.size() - sizeof(Hash128));
  const Hash128 hash = xxh3_128(body);
  if (std::memcmp(&hash, bytes.data() + body.size(), sizeof hash) != 0) return damaged();
  ByteReader in(body);
  const auto magic = in.take(sizeof kRanksMagic);
  const auto step = in.read<uint64_t>(), world = in.read<uint64_t>(), count = in.read<uint64_t>();
  if (!count || *world > kMostRanks || *count > *world) return damaged();
  const bool has_own = std::memcmp(magic->data(), kRanksWithOwnMagic, sizeof kRanksMagic) == 0;
  if (!has_own && std::memcmp(magic->data(), kRanksMagic, sizeof kRanksMagic - 1) != 0) return damaged();
  if (!has_own && std::memcmp(magic->data(), kRanksMagic, sizeof kRanksMagic) != 0)
    return fail(Code::kUnsupported, kRanksFile, "was written by a newer ckpt");
  RanksRecord out{*step, static_cast<uint32_t>(*world), {}};
  for (uint64_t i = 0; i < *count; ++i) {
    RankRecord rank;
    const auto number = in.read<uint64_t>();
    if (!number || *number >= *world || !get_text(in, rank.layout) || !get_text(in, rank.objects)) return damaged();
    rank.rank = static_cast<uint32_t>(*number);
    const auto hashes = in.read<uint64_t>();
    if (!hashes || *hashes > in.remaining() / sizeof(Hash128)) return damaged();
    for (uint64_t k = 0; k < *hashes; ++k) rank.hashes.push_back(in.read<Hash128>().value());
    if (has_own && !get_own(in, rank)) return damaged();
    out.ranks.push_back(std::move(rank));
  }
  return in.remaining() == 0 ? Result<RanksRecord>(std::move(out)) : Result<RanksRecord>(damaged());
}

}  // namespace ckpt::flash
