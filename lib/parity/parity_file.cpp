#include "lib/parity/parity_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/checked.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/json_reader.h"
#include "lib/base/staged_dir.h"
#include "lib/parity/galois.h"

namespace ckpt::parity {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr std::string_view kMagic = "CKPTPAR1";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kData = 4096;  ///< where the parity begins
constexpr uint64_t kMostFooter = 64 << 20, kMostChunk = uint64_t{1} << 56, kMostTable = uint64_t{4} << 30;
constexpr uint64_t kMostTold = uint64_t{1} << 30;  ///< sums and table together
constexpr uint32_t kLeastBlock = 16 << 10, kMostBlock = 1 << 20, kMostWorld = 1 << 20;
constexpr const char* kInfix = ".ckpt-parity-";

/// At the beginning of the file; the rest up to kData is zeros.
struct Preamble {
  char magic[8];
  uint32_t version, footer_crc;
  uint64_t footer_at, footer_bytes;
  uint32_t zero, crc;  ///< of all before it
};
static_assert(sizeof(Preamble) == 40);

ByteSpan bytes_of(const BlockSums& sums) { return std::as_bytes(std::span(sums)); }

uint32_t preamble_crc(const Preamble& preamble) {
  return crc32c(0, as_bytes({reinterpret_cast<const char*>(&preamble), offsetof(Preamble, crc)}));
}

template <class T>
bool take(const Json& object, const char* name, T& out, uint64_t most) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned() || found->get<uint64_t>() > most) return false;
  out = found->get<T>();
  return true;
}

bool take(const Json& object, const char* name, std::string& out) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return false;
  out = found->get<std::string>();
  return true;
}

std::optional<MemberRecord> member_from_json(const Json& json) {
  MemberRecord out;
  std::string digest;
  if (!json.is_object() || !take(json, "rank", out.rank, kMostWorld - 1) || !take(json, "node", out.place.node) ||
      !take(json, "rack", out.place.rack) || !take(json, "bytes", out.bytes, kMostChunk) ||
      !take(json, "digest", digest))
    return std::nullopt;
  const auto hash = hash_from_hex(digest);
  if (!hash) return std::nullopt;
  out.digest = *hash;
  return out;
}

/// What one member says makes sense together.
bool is_consistent(const SetRecord& record) {
  std::set<uint32_t> ranks;
  for (const MemberRecord& member : record.members) {
    if (member.rank >= record.world || !ranks.insert(member.rank).second) return false;
  }
  const auto code = record.code();
  if (!code || record.chunk == 0 || record.block == 0 || record.chunk % kBlockUnit != 0 ||
      record.block % kBlockUnit != 0 || record.block < std::min<uint64_t>(kLeastBlock, record.chunk))
    return false;
  const auto room = checked_mul<uint64_t>(record.chunk, code->data_chunks());
  return room && std::all_of(record.members.begin(), record.members.end(),
                             [&](const MemberRecord& member) { return member.bytes <= *room; });
}

Json json_of(const SetRecord& record) {
  Json members = Json::array();
  for (const MemberRecord& member : record.members) {
    members.push_back({{"rank", member.rank},
                       {"node", member.place.node},
                       {"rack", member.place.rack},
                       {"bytes", member.bytes},
                       {"digest", to_hex(member.digest)}});
  }
  return {{"epoch", record.epoch},        {"scheme", std::string(scheme_name(record.scheme))},
          {"parity", record.parity},      {"world", record.world},
          {"chunk", record.chunk},        {"block", record.block},
          {"members", std::move(members)}};
}

std::optional<SetRecord> from_json(const Json& json) {
  SetRecord out;
  std::string scheme;
  if (!json.is_object() || !take(json, "epoch", out.epoch, UINT64_MAX) || !take(json, "scheme", scheme) ||
      !take(json, "parity", out.parity, 255) || !take(json, "world", out.world, kMostWorld) ||
      !take(json, "chunk", out.chunk, kMostChunk) || !take(json, "block", out.block, kMostBlock))
    return std::nullopt;
  const auto known = scheme_from_name(scheme);
  const auto members = json.find("members");
  if (!known || members == json.end() || !members->is_array() || members->size() > 256) return std::nullopt;
  out.scheme = *known;
  for (const Json& member : *members) {
    auto one = member_from_json(member);
    if (!one) return std::nullopt;
    out.members.push_back(std::move(*one));
  }
  return is_consistent(out) ? std::optional(std::move(out)) : std::nullopt;
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json parse(std::string_view text) {
  if (!json_nests_at_most(text, 8)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}

}  // namespace

std::optional<Hash128> hash_from_hex(const std::string& text) {
  Hash128 out;
  if (!is_hex(text, 32)) return std::nullopt;
  out.hi = std::stoull(text.substr(0, 16), nullptr, 16);
  out.lo = std::stoull(text.substr(16), nullptr, 16);
  return out;
}

std::vector<std::string> SetRecord::nodes() const {
  std::vector<std::string> out;
  for (const MemberRecord& member : members) out.push_back(member.place.node);
  return out;
}

Hash128 digest_of(const BlockSums& sums) { return xxh3_128(bytes_of(sums)); }

std::string to_json(const SetRecord& record) { return text_of(json_of(record)); }

std::optional<SetRecord> record_from_json(std::string_view text) {
  const Json json = parse(text);
  return json.is_discarded() ? std::nullopt : from_json(json);
}

fs::path parity_path(const fs::path& folder, uint64_t epoch) {
  fs::path plain = folder.lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  plain += fmt::format("{}{:016x}", kInfix, epoch);
  return plain;
}

Result<std::vector<fs::path>> find_parity_files(const fs::path& folder) {
  std::vector<fs::path> out;
  const fs::path example = parity_path(fs::absolute(folder), 0);
  const std::string name = example.filename().string(), prefix = name.substr(0, name.size() - 16);
  std::error_code ec;
  for (fs::directory_iterator it(example.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
    const std::string other = it->path().filename().string();
    if (other.starts_with(prefix) && is_hex(std::string_view(other).substr(prefix.size()), name.size() - prefix.size()))
      out.push_back(it->path());
  }
  if (ec && ec != std::errc::no_such_file_or_directory && ec != std::errc::not_a_directory)
    return sys_error(ec.value(), example.parent_path().string(), "cannot be listed");
  std::sort(out.rbegin(), out.rend());
  return out;
}

void remove_abandoned_parity(const fs::path& folder) {
  const std::string example = parity_path(fs::absolute(folder), 0).string();
  remove_abandoned_staging_of(example.substr(0, example.size() - 16));
}

Result<ParityWriter> ParityWriter::create(const fs::path& path, uint64_t chunk) {
  ParityWriter out;
  out.subject_ = path.string();
  out.chunk_ = chunk;
  CKPT_TRY_ASSIGN(out.fd_, io::open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW));
  return out;
}

Result<void> ParityWriter::write(uint32_t index, uint64_t offset, ByteSpan parity) {
  return io::pwrite_all(fd_.get(), parity, kData + index * chunk_ + offset, subject_);
}

Result<void> ParityWriter::give_to(uint32_t user) {
  if (::fchown(fd_.get(), user, static_cast<gid_t>(-1)) != 0) return sys_error(subject_, "its owner cannot be set");
  return {};
}

Result<void> ParityWriter::finish(const SetRecord& record, uint32_t member, const BlockSums& data,
                                  const BlockSums& parity, const FileTable& table) {
  uint64_t at = kData + record.parity * chunk_;
  const std::string files = table.encode();
  if (4 * (data.size() + parity.size()) + files.size() > kMostTold)
    return fail(Code::kNoRoom, subject_, "the sums of its blocks and the table of its files are too long");
  Json json = json_of(record);
  json["member"] = member;
  json["data_sums"] = data.size();
  json["parity_sums"] = parity.size();
  json["table_bytes"] = files.size();
  json["sums_crc"] = crc32c(crc32c(crc32c(0, bytes_of(data)), bytes_of(parity)), as_bytes(files));
  const std::string footer = text_of(json);
  for (ByteSpan part : {bytes_of(data), bytes_of(parity), as_bytes(files), as_bytes(footer)}) {
    CKPT_TRY(io::pwrite_all(fd_.get(), part, at, subject_));
    at += part.size();
  }
  Preamble preamble{};
  std::memcpy(preamble.magic, kMagic.data(), kMagic.size());
  preamble.version = kVersion;
  preamble.footer_crc = crc32c(0, as_bytes(footer));
  preamble.footer_at = at - footer.size(), preamble.footer_bytes = footer.size();
  preamble.crc = preamble_crc(preamble);
  std::vector<std::byte> head(kData);
  std::memcpy(head.data(), &preamble, sizeof preamble);
  return io::pwrite_all(fd_.get(), head, 0, subject_);
}

Result<ParityFile> ParityFile::open(const fs::path& path) {
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  return read(std::move(fd), path);
}

Result<ParityFile> ParityFile::read(UniqueFd fd, const fs::path& path) {
  ParityFile out;
  out.fd_ = std::move(fd);
  out.path_ = path;
  const std::string subject = path.string();
  const Error damaged(Code::kCorrupt, subject, "is no complete parity file");
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(out.fd_.get(), subject));
  out.owner_ = st.st_uid, out.group_ = st.st_gid;
  const auto size = static_cast<uint64_t>(st.st_size);
  if (!S_ISREG(st.st_mode) || size < kData) return damaged;
  std::vector<std::byte> head(kData);
  CKPT_TRY(io::pread_exact(out.fd_.get(), head, 0, subject));
  Preamble preamble{};
  std::memcpy(&preamble, head.data(), sizeof preamble);
  if (std::string_view(preamble.magic, sizeof preamble.magic) != kMagic || preamble_crc(preamble) != preamble.crc)
    return damaged;
  if (preamble.version != kVersion)
    return fail(Code::kUnsupported, subject, fmt::format("is of version {}; known is {}", preamble.version, kVersion));
  const bool padded =
      std::all_of(head.begin() + sizeof preamble, head.end(), [](std::byte b) { return b == std::byte{0}; });
  const auto end = checked_add(preamble.footer_at, preamble.footer_bytes);
  if (!padded || !end || *end != size || preamble.footer_at < kData || preamble.footer_bytes > kMostFooter)
    return damaged;
  std::string footer(preamble.footer_bytes, 0);
  CKPT_TRY(io::pread_exact(out.fd_.get(), std::as_writable_bytes(std::span(footer)), preamble.footer_at, subject));
  if (crc32c(0, as_bytes(footer)) != preamble.footer_crc) return damaged;
  CKPT_TRY(out.read_footer(footer, kData, preamble.footer_at));
  return out;
}

Result<void> ParityFile::read_footer(std::string_view text, uint64_t data_at, uint64_t footer_at) {
  const std::string subject = path_.string();
  const Error damaged(Code::kCorrupt, subject, "its footer contradicts itself or the file");
  const Json json = parse(text);
  if (json.is_discarded()) return damaged;
  auto record = from_json(json);
  uint64_t data_sums = 0, parity_sums = 0, table_bytes = 0;
  uint32_t crc = 0;
  if (!record || !take(json, "member", member_, record->members.size() - 1) ||
      !take(json, "data_sums", data_sums, UINT64_MAX) || !take(json, "parity_sums", parity_sums, UINT64_MAX) ||
      !take(json, "table_bytes", table_bytes, kMostTable) || !take(json, "sums_crc", crc, UINT32_MAX))
    return damaged;
  record_ = std::move(*record);
  CKPT_TRY_ASSIGN(const ErasureCode code, record_.code());
  // Neither product overflows: chunks and parities are limited.
  const uint64_t sums_at = data_at + record_.parity * record_.chunk;
  if (data_sums != code.data_chunks() * record_.blocks() || parity_sums != code.parity_chunks() * record_.blocks() ||
      sums_at > footer_at || data_sums > footer_at / 4 || parity_sums > footer_at / 4 ||
      footer_at - sums_at > kMostTold || sums_at + 4 * (data_sums + parity_sums) + table_bytes != footer_at)
    return damaged;
  std::vector<std::byte> rest(footer_at - sums_at);
  CKPT_TRY(io::pread_exact(fd_.get(), rest, sums_at, subject));
  if (crc32c(0, rest) != crc) return fail(Code::kCorrupt, subject, "what it says of the data is damaged");
  data_sums_.resize(data_sums), parity_sums_.resize(parity_sums);
  std::memcpy(data_sums_.data(), rest.data(), 4 * data_sums);
  std::memcpy(parity_sums_.data(), rest.data() + 4 * data_sums, 4 * parity_sums);
  CKPT_TRY_ASSIGN(table_, FileTable::parse(ByteSpan(rest).subspan(4 * (data_sums + parity_sums)), subject));
  const MemberRecord& me = record_.members[member_];
  if (table_.run_bytes() != me.bytes || digest_of(data_sums_) != me.digest) return damaged;
  return {};
}

Result<void> ParityFile::read_block(uint32_t index, uint64_t block, MutableByteSpan out) const {
  const std::string subject = path_.string();
  const uint64_t offset = index * record_.chunk + block * record_.block;
  CKPT_TRY(io::pread_exact(fd_.get(), out, kData + offset, subject));
  if (crc32c(0, out) != parity_sums_[index * record_.blocks() + block])
    return fail(Code::kCorrupt, subject,
                fmt::format("its parity is damaged: bytes {} to {}", kData + offset, kData + offset + out.size()));
  return {};
}

}  // namespace ckpt::parity
