#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/checked.h"
#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/parity/galois.h"
#include "lib/parity/group.h"

namespace ckpt::parity {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// The epoch that a parity file's name ends with.
uint64_t epoch_of(const fs::path& path) {
  const std::string name = path.filename().string();
  return std::stoull(name.substr(name.size() - 16), nullptr, 16);
}

/// What each rank tells the others before it begins.
struct Intent {
  Place place;
  uint64_t bytes = 0;
  uint64_t newest = 0;  ///< epoch; 0: none
  uint64_t now = 0;
  uint64_t memory = 0;

  std::string text() const {
    const Json json = {{"node", place.node}, {"rack", place.rack}, {"bytes", bytes},
                       {"newest", newest},   {"now", now},         {"memory", memory}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  static Intent parse(const std::string& text) {
    const Json json = Json::parse(text);
    return {{json["node"], json["rack"]}, json["bytes"], json["newest"], json["now"], json["memory"]};
  }
};

/// Own data out of the folder, parity into the new file; CRCs of both on the way.
class EncodingSymbols final : public Symbols {
 public:
  EncodingSymbols(const SetRecord& set, const ErasureCode& code, uint32_t member, RunReader& run, ParityWriter& out)
      : set_(set), code_(code), member_(member), run_(run), out_(out) {
    data.resize(code.data_chunks() * set.blocks());
    parity.resize(code.parity_chunks() * set.blocks());
  }

  Result<void> read(uint32_t row, uint64_t block, MutableByteSpan bytes) override {
    const uint32_t index = code_.symbol(member_, row).index;
    CKPT_TRY(run_.read(index * set_.chunk + block * set_.block, bytes));
    data[index * set_.blocks() + block] = crc32c(0, bytes);
    return {};
  }

  Result<void> write(uint32_t row, uint64_t block, ByteSpan bytes) override {
    const uint32_t index = code_.symbol(member_, row).index;
    parity[index * set_.blocks() + block] = crc32c(0, bytes);
    return out_.write(index, block * set_.block, bytes);
  }

  BlockSums data, parity;

 private:
  const SetRecord& set_;
  const ErasureCode& code_;
  uint32_t member_;
  RunReader& run_;
  ParityWriter& out_;
};

Result<void> check_unchanged(const fs::path& folder, const FileTable& table) {
  CKPT_TRY_ASSIGN(const FileTable now, scan_folder(folder));
  if (now == table) return {};
  for (const FileEntry& entry : table.entries) {
    CKPT_TRY_ASSIGN(const std::string what, difference(folder, entry, false));
    if (!what.empty())
      return fail(Code::kMismatch, (folder / entry.name).string(), "changed while it was protected: " + what);
  }
  return fail(Code::kMismatch, folder.string(), "changed while it was protected");
}

/// The records of all sets, with all that is known before any byte is read.
Result<std::vector<SetRecord>> make_records(const std::vector<Intent>& ranks, const SetRules& rules) {
  std::vector<Place> places;
  uint64_t epoch = 0, memory = UINT64_MAX;
  for (const Intent& rank : ranks) {
    places.push_back(rank.place);
    epoch = std::max({epoch, rank.now, rank.newest + 1});
    memory = std::min(memory, rank.memory);
  }
  CKPT_TRY_ASSIGN(const auto sets, make_sets(places, rules));
  std::vector<SetRecord> out;
  for (const std::vector<uint32_t>& ranks_of_set : sets) {
    SetRecord set;
    set.epoch = epoch, set.scheme = rules.scheme, set.parity = rules.parity;
    set.world = static_cast<uint32_t>(ranks.size());
    uint64_t most = 0;
    for (uint32_t rank : ranks_of_set) {
      set.members.push_back({rank, places[rank], ranks[rank].bytes, {}});
      most = std::max(most, ranks[rank].bytes);
    }
    CKPT_TRY_ASSIGN(const ErasureCode code, set.code());
    set.chunk = align_up<uint64_t>((most + code.data_chunks() - 1) / code.data_chunks(), kBlockUnit);
    set.block = block_for(encoding_schedule(code, set.nodes()), code.members(), set.chunk, memory);
    out.push_back(std::move(set));
  }
  return out;
}

/// The set and the member of it that a rank is.
std::pair<size_t, uint32_t> find_rank(const std::vector<SetRecord>& sets, uint32_t rank) {
  for (size_t i = 0; i < sets.size(); ++i) {
    for (uint32_t member = 0; member < sets[i].members.size(); ++member) {
      if (sets[i].members[member].rank == rank) return {i, member};
    }
  }
  bug("every rank has a set", __FILE__, __LINE__);
}

/// Names are given on all ranks or on none; only then what was there before goes.
Result<void> publish(Rank& rank, StagedDir& staged, const std::string& name, const fs::path& path,
                     const std::vector<fs::path>& before) {
  const Result<void> committed = staged.commit(name);
  if (Result<void> all = agree(rank.transport, committed); !all) {
    std::error_code ec;
    if (committed) fs::remove(path, ec);
    return all;
  }
  for (const fs::path& old : before) {
    std::error_code ec;
    fs::remove(old, ec);
    if (ec) rank.progress.note(old.string() + ": cannot be removed: " + ec.message());
  }
  return {};
}

}  // namespace

Result<void> agree(Transport& transport, const Result<void>& mine) {
  Json json;
  if (!mine) {
    const Error& error = mine.error();
    json = {{"code", static_cast<int>(error.code)},
            {"subject", error.subject},
            {"text", error.message},
            {"errno", error.sys_errno},
            {"hint", error.hint},
            {"secondary", is_secondary(error)}};
  }
  CKPT_TRY_ASSIGN(const auto all, transport.all_gather(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
  std::optional<Error> out;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Json said = Json::parse(all[rank]);
    if (said.is_null() || (out && (said["secondary"] || !is_secondary(*out)))) continue;
    out.emplace(static_cast<Code>(said["code"].get<int>()), said["subject"], said["text"]);
    out->sys_errno = said["errno"];
    out->hint = said["hint"];
    if (all.size() > 1 && !said["secondary"]) out->causes.push_back(fmt::format("on rank {}", rank));
  }
  if (out) return std::move(*out);
  return {};
}

Result<Protection> protect(Rank& rank, const ProtectOptions& options) {
  auto table = scan_folder(rank.folder);
  const auto found = find_parity_files(rank.folder);
  CKPT_TRY(agree(rank.transport, !table   ? Result<void>(table.error())
                                 : !found ? Result<void>(found.error())
                                          : Result<void>()));
  const std::vector<fs::path>& before = *found;
  const Intent mine{rank.place, table->run_bytes(), before.empty() ? 0 : epoch_of(before.front()), now_ns(),
                    rank.memory};
  CKPT_TRY_ASSIGN(const auto said, rank.transport.all_gather(mine.text()));
  std::vector<Intent> intents;
  for (const std::string& text : said) intents.push_back(Intent::parse(text));
  Protection out;
  CKPT_TRY_ASSIGN(out.sets, make_records(intents, options.rules));
  uint64_t work = 0;
  for (const SetRecord& set : out.sets) {
    for (const MemberRecord& member : set.members) out.data_bytes += member.bytes;
    out.parity_bytes += set.chunk * set.parity * set.members.size();
    CKPT_TRY_ASSIGN(const ErasureCode code, set.code());
    work += set.chunk * code.data_chunks() * set.members.size();
  }
  if (options.dry_run) return out;

  const auto [index, member] = find_rank(out.sets, rank.transport.rank());
  SetRecord& set = out.sets[index];
  CKPT_TRY_ASSIGN(const ErasureCode code, set.code());
  const Schedule schedule = encoding_schedule(code, set.nodes());
  const fs::path path = parity_path(fs::absolute(rank.folder), set.epoch);
  const std::string name = path.filename().string();
  remove_abandoned_parity(rank.folder);
  auto staged = StagedDir::create(path, false, StagedDir::Kind::kFile);
  CKPT_TRY(agree(rank.transport, staged ? Result<void>() : Result<void>(staged.error())));
  auto writer = ParityWriter::create(staged->path() / name, set.chunk);
  CKPT_TRY(agree(rank.transport, writer ? Result<void>() : Result<void>(writer.error())));
  if (rank.transport.rank() == 0) rank.progress.begin("protect", work);

  RunReader run(rank.folder, *table);
  EncodingSymbols symbols(set, code, member, run, *writer);
  ExchangeJob job{&set, &schedule, {}, member, 0};
  for (const MemberRecord& one : set.members) job.ranks.push_back(one.rank);
  Result<void> done = exchange(rank.transport, job, symbols, rank.progress, rank.cancel);
  if (done) done = check_unchanged(rank.folder, *table);
  CKPT_TRY(agree(rank.transport, done));

  CKPT_TRY_ASSIGN(const auto digests, rank.transport.all_gather(to_hex(digest_of(symbols.data))));
  for (SetRecord& one : out.sets) {
    for (MemberRecord& of : one.members) of.digest = hash_from_hex(digests[of.rank]).value_or(Hash128{});
  }
  CKPT_TRY(agree(rank.transport, writer->finish(set, member, symbols.data, symbols.parity, *table)));
  CKPT_TRY(publish(rank, *staged, name, path, before));
  return out;
}

}  // namespace ckpt::parity
