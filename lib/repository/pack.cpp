#include "lib/repository/pack.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/repository/wire.h"

namespace ckpt::repository {

namespace {

constexpr uint32_t kPackVersion = 1;
constexpr std::string_view kPackMagic = "CKPTPACK", kEndMagic = "CKPTPEND", kIndexMagic = "CKPTINDX";
constexpr size_t kGroupRecord = 24, kChunkRecord = 36, kIndexHeader = 16;

Id digest_of(ByteSpan bytes) { return IdBuilder().of(bytes); }

}  // namespace

const Group& PackTable::group_of(size_t chunk) const {
  auto behind = std::upper_bound(groups.begin(), groups.end(), chunk,
                                 [](size_t wanted, const Group& group) { return wanted < group.first; });
  return *std::prev(behind);
}

size_t PackTable::offset_in_group(const Group& group, size_t chunk) const {
  size_t out = 0;
  for (size_t i = group.first; i < chunk; ++i) out += lengths[i];
  return out;
}

uint64_t PackTable::bytes() const {
  uint64_t sum = 0;
  for (uint32_t length : lengths) sum += length;
  return sum;
}

bool is_pack_name(std::string_view name) {
  auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (name.size() != kPackName) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    if (i == 32 ? name[i] != '-' : !hex(name[i])) return false;
  }
  return true;
}

std::string pack_name(const std::string& push, uint32_t number) { return fmt::format("{}-{:08x}", push, number); }

std::string pack_header() {
  std::string out(kPackMagic);
  append(out, kPackVersion);
  append(out, uint32_t{0});
  return out;
}

std::string encode_table(const PackTable& table) {
  std::string out;
  out.reserve(8 + table.groups.size() * kGroupRecord + table.ids.size() * kChunkRecord);
  append(out, static_cast<uint32_t>(table.groups.size()));
  append(out, static_cast<uint32_t>(table.ids.size()));
  for (const Group& group : table.groups) {
    append(out, group.offset);
    append(out, group.stored);
    append(out, group.length);
    append(out, group.count);
    append(out, static_cast<uint32_t>(group.codec));
  }
  for (size_t i = 0; i < table.ids.size(); ++i) {
    append(out, table.lengths[i]);
    append_id(out, table.ids[i]);
  }
  return out;
}

namespace {

/// What is wrong with a group, or null. `at`: where the one before ends.
const char* check_group(const Group& group, uint64_t at, uint64_t end) {
  if (group.offset < at || group.offset > end || group.stored > end - group.offset) return "a group lies outside";
  if (group.count == 0 || group.length == 0 || group.length > kMaxGroup) return "a group has no size that one can have";
  if (group.codec != Codec::kRaw && group.codec != Codec::kZstd) return "a group has a codec that is not known";
  if (group.codec == Codec::kRaw ? group.stored != group.length : group.stored >= group.length || group.stored == 0)
    return "a group's lengths contradict each other";
  return nullptr;
}

}  // namespace

Result<PackTable> parse_table(ByteSpan bytes, uint64_t pack_size, const std::string& subject) {
  auto damaged = [&](const char* what) { return fail(Code::kCorrupt, subject, std::string("table: ") + what); };
  ByteReader in(bytes);
  const auto groups = in.read<uint32_t>(), chunks = in.read<uint32_t>();
  if (!groups || !chunks || uint64_t{*groups} * kGroupRecord + uint64_t{*chunks} * kChunkRecord != in.remaining())
    return damaged("is not as long as it says");
  if (pack_size > kMaxPack || pack_size < kPackHeader + bytes.size() + kPackTrailer)
    return damaged("is of a pack of another size");
  const uint64_t end = pack_size - kPackTrailer - bytes.size();
  PackTable out;
  out.groups.resize(*groups);
  uint64_t at = kPackHeader, first = 0;
  for (Group& group : out.groups) {
    group.offset = *in.read<uint64_t>(), group.stored = *in.read<uint32_t>(), group.length = *in.read<uint32_t>();
    group.count = *in.read<uint32_t>(), group.codec = static_cast<Codec>(*in.read<uint32_t>());
    if (const char* what = check_group(group, at, end)) return damaged(what);
    if (group.count > *chunks - first) return damaged("has fewer chunks than its groups");
    at = group.offset + group.stored;
    group.first = static_cast<uint32_t>(first), first += group.count;
  }
  if (first != *chunks) return damaged("has more chunks than its groups");
  out.lengths.resize(*chunks), out.ids.resize(*chunks);
  for (const Group& group : out.groups) {
    uint64_t sum = 0;
    for (size_t i = group.first; i < size_t{group.first} + group.count; ++i) {
      out.lengths[i] = *in.read<uint32_t>(), out.ids[i] = *in.read<Id>();
      if (out.lengths[i] == 0 || out.lengths[i] > kMaxChunk || out.ids[i].empty())
        return damaged("has a chunk that cannot be");
      sum += out.lengths[i];
    }
    if (sum != group.length) return damaged("has a group that is not as long as its chunks");
  }
  return out;
}

namespace {

Id trailer_digest(std::string_view table, uint32_t version) {
  std::string covered(table);
  append(covered, static_cast<uint32_t>(table.size()));
  append(covered, version);
  return digest_of(as_bytes(covered));
}

}  // namespace

std::string pack_trailer(std::string_view table) {
  std::string out;
  append(out, static_cast<uint32_t>(table.size()));
  append(out, kPackVersion);
  append_id(out, trailer_digest(table, kPackVersion));
  return out += kEndMagic;
}

Result<Trailer> parse_trailer(ByteSpan bytes, uint64_t pack_size, const std::string& subject) {
  ByteReader in(bytes);
  const auto length = in.read<uint32_t>(), version = in.read<uint32_t>();
  const auto digest = in.read<Id>();
  const auto magic = in.take(kEndMagic.size());
  if (!magic || in.remaining() != 0 || as_text(*magic) != kEndMagic)
    return fail(Code::kCorrupt, subject, "does not end as a pack does");
  if (*length > pack_size || pack_size - *length < kPackHeader + kPackTrailer)
    return fail(Code::kCorrupt, subject, "has a table that is longer than itself");
  return Trailer{*length, *version, *digest};
}

Result<void> check_trailer(const Trailer& trailer, ByteSpan table, const std::string& subject) {
  if (table.size() != trailer.table || trailer_digest(as_text(table), trailer.version) != trailer.digest)
    return fail(Code::kCorrupt, subject, "has a table that is damaged");
  if (trailer.version != kPackVersion)
    return fail(Code::kUnsupported, subject, "is of a version that this ckpt does not know");
  return {};
}

void IndexWriter::add(const std::string& name, uint64_t size, std::string_view table) {
  CKPT_ASSERT(name.size() == kPackName);
  body_ += name;
  append(body_, size);
  append(body_, static_cast<uint32_t>(table.size()));
  body_ += table;
  ++packs_;
}

std::string IndexWriter::finish() {
  std::string out(kIndexMagic);
  append(out, kPackVersion);
  append(out, packs_);
  out += body_;
  append_id(out, digest_of(as_bytes(out)));
  body_.clear(), packs_ = 0;
  return out;
}

Result<std::vector<IndexedPack>> parse_index(ByteSpan bytes, const std::string& subject) {
  const size_t digest = sizeof(Id);
  if (bytes.size() < kIndexHeader + digest) return fail(Code::kCorrupt, subject, "is cut short");
  ByteReader in(bytes.first(bytes.size() - digest)), end(bytes.last(digest));
  if (*end.read<Id>() != digest_of(bytes.first(bytes.size() - digest)))
    return fail(Code::kCorrupt, subject, "does not match its digest");
  if (as_text(*in.take(kIndexMagic.size())) != kIndexMagic) return fail(Code::kCorrupt, subject, "is no index");
  if (*in.read<uint32_t>() != kPackVersion)
    return fail(Code::kUnsupported, subject, "is of a version that this ckpt does not know");
  const uint32_t packs = *in.read<uint32_t>();
  std::vector<IndexedPack> out;
  for (uint32_t i = 0; i < packs; ++i) {
    const auto name = in.take(kPackName);
    const auto size = in.read<uint64_t>();
    const auto length = in.read<uint32_t>();
    const auto table = length ? in.take(*length) : std::nullopt;
    if (!table || !is_pack_name(as_text(*name))) return fail(Code::kCorrupt, subject, "has an entry that cannot be");
    IndexedPack pack;
    pack.name = as_text(*name), pack.size = *size;
    CKPT_TRY_ASSIGN(pack.table, parse_table(*table, *size, subject));
    out.push_back(std::move(pack));
  }
  if (in.remaining() != 0) return fail(Code::kCorrupt, subject, "has more than its packs");
  return out;
}

}  // namespace ckpt::repository
